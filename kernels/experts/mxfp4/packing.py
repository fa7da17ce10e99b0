"""How a GPU holds weights in MXFP4: the same bits in the order in which tensor cores take them.

A unit is 16 rows by 64 columns, 16 bytes for each of a warp's 32 lanes. Of each 16 columns lane 4 * r + c holds what
`mma` takes from it (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"): rows r and r + 8 at columns
2 * c, 2 * c + 1, 2 * c + 8 and 2 * c + 9, eight numbers in 32 bits. These lie such that a shift and a mask give two
numbers at once: `Form`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from . import BIAS, GROUP, Mxfp4Weight

UNIT_ROWS, UNIT_COLUMNS = 16, 64
UNIT_BYTES = UNIT_ROWS * UNIT_COLUMNS // 2
UNIT_WORDS = UNIT_ROWS * UNIT_COLUMNS // GROUP // 4  # of four scales


@dataclass(frozen=True, slots=True)
class Form:
    """How numbers in E2M1 become 16-bit ones: sign and the three other bits, put where a 16-bit number has its sign
    and the lowest of its exponent and highest of its mantissa, are that number times a power of two, 0.5 too.
    """

    mantissa_bits: int
    exponent_bias: int
    # Of each of four numbers: (shift left, or right where negative; the bits of a half word that this puts in place).
    parts: tuple[tuple[tuple[int, int], ...], ...]
    # A scale is stored as an exponent of the 16-bit format, this much less than its own.
    scale_offset: int

    @property
    def largest_scale(self) -> int:
        """Of those that a 16-bit number can be."""
        return self.scale_offset + 2 * self.exponent_bias

    @property
    def factor(self) -> float:
        """What a product of numbers and scales as stored is to be multiplied by."""
        return 2.0 ** (self.scale_offset - BIAS + 2 * self.exponent_bias - 1)

    @property
    def assembly(self) -> str:
        """PTX that makes registers 0 to 3, two numbers each, of register 4."""
        lines = ["{ .reg .b32 t;"]
        for register, parts in enumerate(self.parts):
            for i, (shift, half) in enumerate(parts):
                source, mask = "t" if shift else "$4", f"{half << 16 | half:#x}"
                if shift:
                    lines.append(f"sh{'l' if shift > 0 else 'r'}.b32 t, $4, {abs(shift)};")
                out = f"${register}"
                lines.append(
                    f"lop3.b32 {out}, {source}, {mask}, {out}, 0xEA;"
                    if i
                    else f"and.b32 {out}, {source}, {mask};"
                )
        return " ".join([*lines, "}"])


# Exact in bfloat16 are scales from 2^-70 to 2^63, in float16 from 2^-19 to 2^5; smaller ones lose bits, then all.
FORMS = {
    torch.bfloat16: Form(
        7,
        127,
        (
            ((0, 0x81C0),),
            ((3, 0x81C0),),
            ((6, 0x81C0),),
            ((1, 0x8000), (-3, 0x0180), (-7, 0x0040)),
        ),
        -64,
    ),
    torch.float16: Form(
        10,
        15,
        (
            ((0, 0x8E00),),
            ((3, 0x8E00),),
            ((6, 0x0E00), (1, 0x8000)),
            ((9, 0x0E00), (2, 0x8000)),
        ),
        102,
    ),
}


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """W [experts, rows, columns] in units; rows are those of the weight it was made of, or 8 even ones of a unit
    before its 8 odd ones. `blocks` and `scales` are filled up to whole units with zeros.
    """

    blocks: torch.Tensor  # uint8 [experts, rows / 16, ceil(columns / 64), 512]
    scales: torch.Tensor  # int32 [experts, rows / 16, ceil(columns / 64), 8]
    bias: torch.Tensor  # [experts, rows], rows as they were
    columns: int

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.blocks, self.scales, self.bias))


def pack(weight: Mxfp4Weight, dtype: torch.dtype, *, paired: bool) -> PackedWeight:
    """Packed for products in `dtype`, one of FORMS; `paired`: even and odd rows of a unit apart.

    A row with a scale that is none has a bias that is none. Raises ValueError where rows are no multiple of 16, or a
    scale is larger than numbers in `dtype` can have.
    """
    experts, rows, columns = weight.size
    form, device, missing = FORMS[dtype], weight.blocks.device, weight.scales == 2 * BIAS + 1
    if rows % UNIT_ROWS:
        raise ValueError(f"mxfp4: {rows} rows are no multiple of {UNIT_ROWS}")
    largest, allowed = int(weight.scales.masked_fill(missing, 0).max()), form.largest_scale
    if largest > allowed:
        raise ValueError(f"mxfp4: {dtype} allows scales up to 2^{allowed - BIAS}, not 2^{largest - BIAS}")
    units, steps = rows // UNIT_ROWS, -(-columns // UNIT_COLUMNS)
    blocks = torch.empty((experts, units, steps, UNIT_BYTES), dtype=torch.uint8, device=device)
    scales = torch.empty((experts, units, steps, UNIT_WORDS), dtype=torch.int32, device=device)
    for expert in range(experts):
        blocks[expert] = _blocks(weight.blocks[expert], form, steps, paired=paired)
        scales[expert] = _scales(weight.scales[expert], form, steps, paired=paired)
    bias = torch.zeros((experts, rows), dtype=dtype, device=device)
    if weight.bias is not None:
        bias.copy_(weight.bias)
    bias[missing.any(-1)] = float("nan")
    return PackedWeight(blocks, scales, bias, columns)


def _in_units(rows: torch.Tensor, *, paired: bool) -> torch.Tensor:
    """[units, 2, 8, ...] of [rows, ...]."""
    return rows.unflatten(0, (-1, 8, 2)).transpose(1, 2) if paired else rows.unflatten(0, (-1, 2, 8))


def _blocks(stored: torch.Tensor, form: Form, steps: int, *, paired: bool) -> torch.Tensor:
    numbers = torch.stack([stored & 15, stored >> 4], dim=-1).flatten(1)
    numbers = pad(numbers, (0, steps * UNIT_COLUMNS - numbers.shape[1])).int()
    placed = (numbers & 8) << 12 | (numbers & 7) << (form.mantissa_bits - 1)
    placed = _in_units(placed, paired=paired).unflatten(-1, (steps, 4, 2, 4, 2))
    # unit, high row, row, step, sixteen, high columns, pair, column
    placed = placed.permute(0, 3, 2, 6, 4, 7, 5, 1).flatten(-2)  # of a half word its four numbers
    halves = torch.zeros_like(placed[..., 0])
    for number, parts in zip(placed.unbind(-1), form.parts, strict=True):
        for shift, mask in parts:
            halves |= (number & mask) >> shift if shift >= 0 else (number & mask) << -shift
    in_bytes = torch.stack([halves & 255, halves >> 8], dim=-1).to(torch.uint8)
    return in_bytes.flatten(2)


def _scales(stored: torch.Tensor, form: Form, steps: int, *, paired: bool) -> torch.Tensor:
    scales = (stored.int() - form.scale_offset).clamp(0, 2 * form.exponent_bias)
    scales = pad(scales, (0, 2 * steps - scales.shape[1])).to(torch.uint8)
    scales = _in_units(scales, paired=paired).unflatten(-1, (steps, 2))
    # unit, high row, row, step, high columns
    return scales.permute(0, 3, 2, 4, 1).flatten(-2).contiguous().view(torch.int32).squeeze(-1)

"""Triton on CUDA: weights stay packed in memory, and become 16-bit numbers in the registers that tensor cores read.

The weight is the left factor, out^T = W x^T: Hopper's warpgroup instructions take that one from registers.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ... import checks, launch
from .. import Experts, sort_by_expert
from ..grouping import Groups
from . import Mxfp4Weight, reference
from .packing import FORMS, UNIT_BYTES, UNIT_COLUMNS, UNIT_ROWS, UNIT_WORDS, Form, PackedWeight, pack

_REGISTERS = "=&r,=&r,=&r,=&r,r"


@triton.jit(do_not_specialize=["num_places"])
def mxfp4_grouped_kernel(
    x, blocks, scales, bias, out, places, tile_experts, row_weights, num_places, n, k, factor, limit, alpha,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, DIVISOR: tl.constexpr, GATED: tl.constexpr,
    WEIGHTED: tl.constexpr, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr, REGISTERS: tl.constexpr,
    MANTISSA_BITS: tl.constexpr, UNIT_ROWS: tl.constexpr, UNIT_COLUMNS: tl.constexpr, UNIT_BYTES: tl.constexpr,
    UNIT_WORDS: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, row tiles). Place p reads row p // DIVISOR of x [., k]; W is [experts, n, k] in units. GATED: out
    [num_places, n / 2] is of gates and ups, the halves of a unit; else out [num_places, n], scaled by row_weights[p]
    if WEIGHTED. EVEN: k is a multiple of UNIT_COLUMNS.
    """
    tile, row_tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    number = x.dtype.element_ty
    units: tl.constexpr = ROWS // UNIT_ROWS
    place = tl.load(places + tile * TOKENS + tl.arange(0, TOKENS))
    live = place < num_places
    depth = tl.arange(0, UNIT_COLUMNS)
    x_at = x + tl.where(live, place // DIVISOR, 0).to(tl.int64)[:, None] * k + depth[None, :]
    # A loop that may have no turn leaves results where they lie only with moves, for which every product is waited for.
    steps = tl.maximum(tl.cdiv(k, UNIT_COLUMNS), 1)
    # Units past the end read the last one: their results are never stored.
    first, last, total_units = row_tile * units, n // UNIT_ROWS - 1, expert * (n // UNIT_ROWS)
    lane, eighth = tl.arange(0, units * 32), tl.arange(0, units * 8)
    unit = (total_units + tl.minimum(first + lane // 32, last)) * steps
    blocks_at = blocks + (unit * UNIT_BYTES + lane % 32 * 16)[:, None] + tl.arange(0, 16)[None, :]
    unit = (total_units + tl.minimum(first + eighth // 8, last)) * steps
    scales_at = scales + unit * UNIT_WORDS + eighth % 8
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for step in range(steps):
        packed, exponents = tl.load(blocks_at), tl.load(scales_at)
        if EVEN:
            right = tl.load(x_at)
        else:
            right = tl.load(x_at, mask=(depth < k - step * UNIT_COLUMNS)[None, :], other=0.0)
        low, high = tl.inline_asm_elementwise(
            ASSEMBLY, REGISTERS, [packed], dtype=(number, number), is_pure=True, pack=4
        )
        exponents = exponents[:, None] >> (tl.arange(0, 4) * 8)[None, :] & 255
        powers = (exponents << MANTISSA_BITS).to(tl.int16).to(number, bitcast=True)
        # unit, row, pair, 32 columns, 16 columns, high row, column
        powers = powers.reshape(units, 8, 1, 2, 1, 2, 1)
        low, high = (
            low.reshape(units, 8, 4, 2, 2, 2, 2) * powers,
            high.reshape(units, 8, 4, 2, 2, 2, 2) * powers,
        )
        left = tl.join(low, high).permute(0, 5, 1, 3, 4, 7, 2, 6).reshape(ROWS, UNIT_COLUMNS)
        total = tl.dot(left, right.T, total)
        blocks_at += UNIT_BYTES
        scales_at += UNIT_WORDS
        x_at += UNIT_COLUMNS
    total *= factor
    if GATED:
        width = n // 2
        column = row_tile * (ROWS // 2) + tl.arange(0, ROWS // 2)
        gate, up = tl.split(total.reshape(units, 2, 8, TOKENS).permute(0, 2, 3, 1))
        bias_at = bias + expert * n + tl.minimum(column, width - 1) * 2
        gate = gate.reshape(ROWS // 2, TOKENS) + tl.load(bias_at).to(tl.float32)[:, None]
        up = up.reshape(ROWS // 2, TOKENS) + tl.load(bias_at + 1).to(tl.float32)[:, None]
        gate = tl.where(gate > limit, limit, gate)  # what is not a number stays so
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        result = (up + 1) * gate / (1 + tl.exp(-alpha * gate))
    else:
        width = n
        column = row_tile * ROWS + tl.arange(0, ROWS)
        result = total + tl.load(bias + expert * n + tl.minimum(column, n - 1)).to(tl.float32)[:, None]
    result = result.to(number).T
    if WEIGHTED:  # in the order of the stores, where a thread has few places
        result = result.to(tl.float32) * tl.load(row_weights + place, mask=live, other=0.0)[:, None]
    where = out + place.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(where, result.to(number), mask=live[:, None] & (column < width)[None, :])


class Mxfp4Experts:
    """Implements `Experts`. Gates and ups share units of 16 rows, 8 of each."""

    def __init__(
        self, gate_up: Mxfp4Weight, down: Mxfp4Weight, dtype: torch.dtype, limit: float, alpha: float
    ) -> None:
        self._form, self._limits = FORMS[dtype], (limit, alpha)
        self._gate_up, self._down = pack(gate_up, dtype, paired=True), pack(down, dtype, paired=False)
        self.weight_bytes = self._gate_up.num_bytes + self._down.num_bytes

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        rows, top_k = ids.shape
        if not rows:
            return out
        num_experts = len(self._down.bias)
        tile = tile_of(rows * top_k, num_experts, launch.capability(x.device))
        groups = Groups(*sort_by_expert(ids, num_experts, tile), rows * top_k, tile)
        inner = product(x, self._gate_up, groups, top_k, self._form, limits=self._limits)
        parts = product(inner, self._down, groups, 1, self._form, row_weights=weights)
        return out.add_(parts.view(rows, top_k, -1).sum(1))


def tile_of(num_places: int, num_experts: int, capability: tuple[int, int]) -> int:
    """Places of one tile: while bytes of weights bound it 64 at most; more share the work of unpacking them."""
    wide = num_places > 64 * num_experts and launch.has_warpgroups(capability)
    return 16 if num_places <= 8 * num_experts else 128 if wide else 64


def plan(
    tile: int, num_tiles: int, n: int, num_sms: int, capability: tuple[int, int]
) -> tuple[int, int, int]:
    """(rows of a program, warps, stages). Of few places 256 rows share the work of a loop's turn, but few tiles of
    them would leave SMs without any; the fewer programs, the more each asks for ahead.
    """
    if not launch.has_warpgroups(capability):
        return 128, 4, 4
    if tile > 16:
        return (128, 8, 4) if tile > 64 else (128, 4, 5)
    return (256, 4, 6) if num_tiles * launch.cdiv(n, 256) >= 2 * num_sms else (128, 4, 10)


def product(
    x: torch.Tensor,
    weight: PackedWeight,
    groups: Groups,
    divisor: int,
    form: Form,
    *,
    limits: tuple[float, float] | None = None,
    row_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """[num_places, n] of each place's row with its expert's weight and bias, times `row_weights`; or, with `limits`,
    the limit and alpha of gates, [num_places, n / 2] of gates and ups. Raises KernelInputError.
    """
    op, device = "mxfp4_grouped_product", x.device
    checks.check_tensor(op, "x", x, weight.bias.device, (weight.bias.dtype,), whole=True)
    groups.check(op, x, weight.columns, divisor, row_weights)
    (n, k), tiles = (weight.bias.shape[1], weight.columns), len(groups.tile_experts)
    out = torch.empty((groups.num_places, n // 2 if limits else n), dtype=x.dtype, device=device)
    rows, warps, stages = plan(groups.tile, tiles, n, launch.num_sms(device), launch.capability(device))
    limit, alpha = limits or (0.0, 0.0)
    mxfp4_grouped_kernel[(tiles, launch.cdiv(n, rows))](
        x, weight.blocks, weight.scales, weight.bias, out, groups.places, groups.tile_experts,
        out if row_weights is None else row_weights, groups.num_places, n, k, form.factor, limit, alpha,
        TOKENS=groups.tile, ROWS=rows, DIVISOR=divisor, GATED=limits is not None,
        WEIGHTED=row_weights is not None, EVEN=k % UNIT_COLUMNS == 0, **constants(form),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


@functools.cache
def constants(form: Form) -> dict[str, str | int]:
    """Of the kernel, as far as the form of weights sets them."""
    return {
        "ASSEMBLY": form.assembly, "REGISTERS": _REGISTERS, "MANTISSA_BITS": form.mantissa_bits, "UNIT_ROWS": UNIT_ROWS,
        "UNIT_COLUMNS": UNIT_COLUMNS, "UNIT_BYTES": UNIT_BYTES, "UNIT_WORDS": UNIT_WORDS,
    }  # fmt: skip


def make_mxfp4_experts(
    gate_up: Mxfp4Weight, down: Mxfp4Weight, dtype: torch.dtype, limit: float, alpha: float
) -> Experts:
    """Multiplied out where activations are wider than 16 bits."""
    make = Mxfp4Experts if dtype in FORMS else reference.make_mxfp4_experts
    return make(gate_up, down, dtype, limit, alpha)

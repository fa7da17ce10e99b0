"""Experts in MXFP4 against the same weights multiplied out."""

from __future__ import annotations

import numpy as np
import torch

from camshaft.kernels import launch
from camshaft.kernels.experts import route, sort_by_expert
from camshaft.kernels.experts.grouping import Groups
from camshaft.kernels.experts.mxfp4 import Mxfp4Weight
from camshaft.kernels.experts.mxfp4.packing import FORMS, PackedWeight, pack
from camshaft.kernels.experts.mxfp4.reference import clamped_swiglu
from camshaft.kernels.experts.mxfp4.triton import make_mxfp4_experts, plan, product, tile_of

from .assembly import execute
from .check import TOLERANCE, Check, Place, compare, compare_sums, replaced, seed_all

LIMITS = (1.5, 1.702)


def drawn(place: Place, experts: int, rows: int, columns: int) -> Mxfp4Weight:
    """Every number, and scales that keep a product near one."""
    size, middle = (experts, rows, columns // 32), 126 - columns.bit_length() // 2
    blocks = torch.randint(0, 256, (*size, 16), dtype=torch.uint8, device=place.device)
    scales = torch.randint(middle - 2, middle + 2, size, dtype=torch.uint8, device=place.device)
    return Mxfp4Weight(blocks, scales, place.tensor(experts, rows))


def one_by_one(weight: Mxfp4Weight, x: torch.Tensor, ids: torch.Tensor, divisor: int) -> torch.Tensor:
    """float32 [places, rows] of W x and bias, for each place alone."""
    dense = weight.dense(torch.float32)
    assert weight.bias is not None
    return torch.stack(
        [
            dense[expert] @ x[place // divisor].float() + weight.bias[expert].float()
            for place, expert in enumerate(ids.reshape(-1).tolist())
        ]
    )


def products(
    tokens: int, experts: int, top_k: int, n: int, k: int, *, sms: int = 0, only: int | None = None
) -> Check:
    """Both products of a layer; `only`: the one expert that takes every token. `sms` stands for the device's."""

    def run(place: Place) -> None:
        seed_all(tokens + n)
        weight = drawn(place, experts, n, k)
        ids = torch.rand(tokens, experts).topk(top_k, dim=-1).indices.to(place.device)
        if only is not None:
            ids = torch.full_like(ids, only)
        num_places = tokens * top_k
        tile = tile_of(num_places, experts, launch.capability(place.device))
        groups = Groups(*sort_by_expert(ids, experts, tile), num_places, tile)
        x, wide = place.tensor(tokens, k), place.tensor(num_places, k)
        shares = torch.rand(tokens, top_k).to(place.device)
        form, counted = FORMS[place.dtype], launch.num_sms(place.device)
        with replaced(launch, "num_sms", lambda device: sms or counted):
            gated = product(x, pack(weight, place.dtype, paired=True), groups, top_k, form, limits=LIMITS)
            scaled = product(
                wide, pack(weight, place.dtype, paired=False), groups, 1, form, row_weights=shares
            )
        compare(gated, clamped_swiglu(one_by_one(weight, x, ids, top_k), *LIMITS), 2 * TOLERANCE[place.dtype])
        compare(
            scaled,
            one_by_one(weight, wide, ids, 1) * shares.reshape(-1, 1),
            2 * TOLERANCE[place.dtype],
        )

    extras = (f"-on{sms}" if sms else "") + ("" if only is None else "-one")
    return Check(f"experts-mxfp4-{tokens}x{experts}of{top_k}-{n}x{k}{extras}", run, heavy=True)


def layer(tokens: int) -> Check:
    """All of it added to what is there already, a token's experts weighed as its router says."""

    def run(place: Place) -> None:
        seed_all(3)
        experts, hidden, inner = 4, 96, 64
        gate_up, down = drawn(place, experts, 2 * inner, hidden), drawn(place, experts, hidden, inner)
        x, out = place.tensor(tokens, hidden), place.tensor(tokens, hidden)
        ids, shares = route(place.tensor(tokens, experts), 2, renormalise=True)
        expected = out.float()
        if tokens:
            inner_rows = clamped_swiglu(one_by_one(gate_up, x, ids, 2), *LIMITS)
            parts = one_by_one(down, inner_rows, ids, 1) * shares.reshape(-1, 1)
            expected = expected + parts.view(tokens, 2, -1).sum(1)
        made = make_mxfp4_experts(gate_up, down, place.dtype, *LIMITS)
        assert made(x, ids, shares, out) is out
        compare(out, expected, 4 * TOLERANCE[place.dtype])

    return Check(f"experts-mxfp4-layer-{tokens}", run)


def packing(dtype: torch.dtype) -> Check:
    """What the assembly and the scales of a packed weight make is the weight, to the last bit, in both orders of rows."""

    def run(place: Place) -> None:
        seed_all(5)
        form, rows, columns = FORMS[dtype], 48, 160
        blocks = torch.randint(0, 256, (2, rows, columns // 32, 16), dtype=torch.uint8)
        # At the lowest scale 0.5 becomes the smallest number of the format, the highest is its largest.
        low = form.scale_offset + form.exponent_bias + 1 - form.mantissa_bits
        scales = torch.randint(low, form.largest_scale, blocks.shape[:3], dtype=torch.uint8)
        scales[0, 0, :3] = torch.tensor([form.largest_scale, low, 0])
        weight = Mxfp4Weight(blocks, scales)
        expected = weight.dense(torch.float32)
        for paired in (False, True):
            packed = pack(weight, dtype, paired=paired)
            got = unpacked(packed, dtype, paired=paired)[..., :columns]
            assert got[0, 0, 64:96].abs().max() < 1e-4
            got[0, 0, 64:96] = expected[0, 0, 64:96]
            compare(got, expected, 0)
            assert not packed.bias.any()
        scales[0, 7, 1], scales[1, 40, 4] = 255, 255
        bias = pack(weight, dtype, paired=True).bias
        assert torch.nonzero(bias.isnan()).tolist() == [[0, 7], [1, 40]]
        scales[1, 2, 3] = form.largest_scale + 1
        try:
            pack(weight, dtype, paired=False)
        except ValueError as error:
            assert "allows scales up to" in str(error)  # noqa: PT017 (no pytest where this runs)
        else:
            raise AssertionError("a scale beyond the largest number was taken")

    return Check(f"experts-mxfp4-packing-{str(dtype).removeprefix('torch.')}", run)


def unpacked(packed: PackedWeight, dtype: torch.dtype, *, paired: bool) -> torch.Tensor:
    """float32 [experts, rows, whole units' columns], made as the kernel makes it."""
    form = FORMS[dtype]
    words = packed.blocks.cpu().numpy().view(np.uint32)
    registers = np.stack(execute(form.assembly, [words], 4), axis=-1)
    # expert, unit, step, row, pair, 32 columns, 16 columns, high columns, high row, column
    numbers = torch.from_numpy(registers.view(np.int16)).view(dtype)
    numbers = numbers.unflatten(3, (8, 4, 2, 2)).unflatten(-1, (2, 2, 2))
    stored = packed.scales.cpu().view(torch.uint8).int()
    powers = (stored << form.mantissa_bits).short().view(dtype).view(*packed.scales.shape, 2, 2)
    values = numbers * powers[:, :, :, :, None, :, None, None, :, None]
    order = (0, 1, 3, 8, 2, 5, 6, 7, 4, 9) if paired else (0, 1, 8, 3, 2, 5, 6, 7, 4, 9)
    units = values.permute(order).flatten(4).flatten(1, 3)
    return units.float() * form.factor


def far_expert() -> Check:
    """An expert whose weight lies more than 2^31 bytes behind the first one's; no other is touched."""

    def run(place: Place) -> None:
        seed_all(8)
        tokens, n, k = 3, 1024, 2048
        near = drawn(place, 1, n, k)
        alone, last = pack(near, place.dtype, paired=False), 2**31 // (n * k // 2)
        held = [
            torch.empty((last + 1, *part.shape[1:]), dtype=part.dtype, device=place.device)
            for part in (alone.blocks, alone.scales, alone.bias)
        ]
        for whole, part in zip(held, (alone.blocks, alone.scales, alone.bias), strict=True):
            whole[last] = part[0]
        places = torch.arange(16, dtype=torch.int32, device=place.device).clamp_max(tokens)
        groups = Groups(places, torch.tensor([last], dtype=torch.int32, device=place.device), tokens, 16)
        x = place.tensor(tokens, k)
        got = product(x, PackedWeight(held[0], held[1], held[2], k), groups, 1, FORMS[place.dtype])
        compare_sums(got, one_by_one(near, x, torch.zeros(tokens).long(), 1))

    return Check("experts-mxfp4-far", run, heavy=True)


def not_a_number() -> Check:
    """A scale of 255 makes its row's results NaN, also those that are cut to a limit, and no other."""

    def run(place: Place) -> None:
        seed_all(9)
        weight = drawn(place, 2, 64, 64)
        weight.scales[1, 6, 1], weight.scales[1, 9, 0] = 255, 255
        places = torch.arange(16, dtype=torch.int32, device=place.device).clamp_max(1)
        groups = Groups(places, torch.tensor([1], dtype=torch.int32, device=place.device), 1, 16)
        x, form = place.tensor(1, 64), FORMS[place.dtype]
        plain = product(x, pack(weight, place.dtype, paired=False), groups, 1, form)
        gated = product(x, pack(weight, place.dtype, paired=True), groups, 1, form, limits=LIMITS)
        assert torch.nonzero(plain[0].isnan()).flatten().tolist() == [6, 9]
        assert torch.nonzero(gated[0].isnan()).flatten().tolist() == [3, 4]

    return Check("experts-mxfp4-nan", run, heavy=True)


def tiles() -> Check:
    """Few places have small tiles, and few tiles small programs."""

    def run(place: Place) -> None:
        for num_places, experts, expected in ((4, 32, 16), (256, 32, 16), (257, 32, 64), (2048, 32, 64), (8192, 32, 128)):  # fmt: skip
            assert tile_of(num_places, experts, (9, 0)) == expected
            assert tile_of(num_places, experts, (8, 9)) == min(64, expected)
        assert [plan(16, tiles, 5760, 132, (9, 0))[0] for tiles in (11, 12)] == [128, 256]
        assert {plan(tile, 400, 2880, 132, (8, 0))[0] for tile in (16, 64)} == {128}

    return Check("experts-mxfp4-tiles", run)


CHECKS = [
    products(5, 3, 2, 64, 64),
    products(9, 4, 2, 320, 96, sms=1),
    products(1, 4, 4, 576, 192, sms=40),
    products(24, 6, 1, 96, 32, only=5),
    products(30, 3, 2, 288, 160, only=0),
    products(70, 2, 2, 64, 128),
    products(150, 2, 1, 544, 64),
    *(layer(tokens) for tokens in (0, 1, 13)),
    *(packing(dtype) for dtype in FORMS),
    far_expert(),
    not_a_number(),
    tiles(),
]

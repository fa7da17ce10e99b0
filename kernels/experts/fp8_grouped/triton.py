"""Triton on Ada, Hopper and later: all experts in one launch, weights streamed as they lie, in FP8."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ... import checks, launch
from ...fp8 import BLOCK
from . import ExpertWeights, Groups

STAGES = 4


@triton.jit(do_not_specialize=["num_places"])
def fp8_grouped_kernel(
    x, x_scales, weight, w_scales, out, places, tile_experts, row_weights, num_places, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, DIVISOR: tl.constexpr,
    BLOCKED: tl.constexpr, WEIGHTED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, column tiles). BLOCKED: scales every BLOCK columns, and COLUMNS divides BLOCK; k is then a
    multiple of it, as it is wherever EVEN.
    """
    tile, column_tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    place = tl.load(places + tile * ROWS + tl.arange(0, ROWS))
    live = place < num_places
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, BLOCK)
    blocks = tl.cdiv(k, BLOCK)
    row = tl.where(live, place // DIVISOR, 0).to(tl.int64)
    # Columns past the end read the last one: their results are never stored.
    column = tl.minimum(columns, n - 1)
    x_at = x + row[:, None] * k + depth[None, :]
    w_at = weight + (expert * n + column)[None, :] * k + depth[:, None]
    x_scale_at = x_scales + row * blocks
    w_scale_at = w_scales + (expert * tl.cdiv(n, BLOCK) + column_tile * COLUMNS // BLOCK) * blocks
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(blocks):
        if EVEN:
            left, right = tl.load(x_at), tl.load(w_at)
        else:
            inside = depth < k - block * BLOCK
            left = tl.load(x_at, mask=inside[None, :], other=0.0)
            right = tl.load(w_at, mask=inside[:, None], other=0.0)
        if BLOCKED:
            total += (
                tl.dot(left, right) * (tl.load(x_scale_at + block) * tl.load(w_scale_at + block))[:, None]
            )
        else:
            total = tl.dot(left, right, total)
        x_at += BLOCK
        w_at += BLOCK
    if not BLOCKED:
        total *= tl.load(x_scales + row)[:, None] * tl.load(w_scales + expert * n + column)[None, :]
    if WEIGHTED:
        total *= tl.load(row_weights + place, mask=live, other=0.0)[:, None]
    where = out + place.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=live[:, None] & (columns < n)[None, :])


def grouped_product(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weights: ExpertWeights,
    groups: Groups,
    divisor: int,
    row_weights: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """As the op. Raises KernelInputError."""
    op, device = "fp8_grouped_product", x.device
    checks.check_tensor(op, "x", x, device, checks.NARROW, whole=True)
    checks.check_tensor(op, "x_scales", x_scales, device, checks.SINGLES, whole=True)
    checks.check_tensor(op, "weights.values", weights.values, device, checks.NARROW, whole=True)
    checks.check_tensor(op, "weights.scales", weights.scales, device, checks.SINGLES, whole=True)
    n, k = weights.values.shape[1:]
    groups.check(op, x, k, divisor, row_weights)
    columns = 128 if groups.tile == 64 else 64
    fp8_grouped_kernel[(len(groups.tile_experts), launch.cdiv(n, columns))](
        x, x_scales, weights.values, weights.scales, out, groups.places, groups.tile_experts,
        out if row_weights is None else row_weights, groups.num_places, n, k,
        ROWS=groups.tile, COLUMNS=columns, BLOCK=BLOCK, DIVISOR=divisor, BLOCKED=weights.is_blocked,
        WEIGHTED=row_weights is not None, EVEN=k % BLOCK == 0, num_warps=4, num_stages=STAGES,
    )  # fmt: skip

"""Triton on CUDA: rows sorted by expert on the device, then one product over all experts at once.

Each expert's rows are padded to whole tiles, so a tile reads one expert's weight. The number of tiles is
bounded from the sizes alone; spare programs return at once, and nothing waits for the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks, launch
from ..silu_mul import silu_mul
from . import sort_by_expert, tile_of
from .grouping import Groups

DEPTH = 64  # of one loop turn


@triton.jit(do_not_specialize=["num_places"])
def grouped_product_kernel(
    x, weight, out, places, tile_experts, row_weights, num_places, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, DIVISOR: tl.constexpr,
    WEIGHTED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, column tiles). out [num_places, n]; place p reads row p // DIVISOR of x [., k] and is scaled
    by row_weights[p] if WEIGHTED. weight [experts, n, k]. EVEN: k is a multiple of DEPTH.
    """
    tile, column_tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(tile_experts + tile)
    if expert < 0:
        return
    place = tl.load(places + tile * ROWS + tl.arange(0, ROWS))
    live = place < num_places
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    row = tl.where(live, place // DIVISOR, 0).to(tl.int64)
    column = tl.minimum(columns, n - 1).to(tl.int64)
    x_at = x + row[:, None] * k + depth[None, :]
    w_at = weight + (expert.to(tl.int64) * n + column)[None, :] * k + depth[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, k, DEPTH):
        if EVEN:
            left, right = tl.load(x_at), tl.load(w_at)
        else:
            inside = depth < k - start
            left = tl.load(x_at, mask=inside[None, :], other=0.0)
            right = tl.load(w_at, mask=inside[:, None], other=0.0)
        total += tl.dot(left, right)
        x_at += DEPTH
        w_at += DEPTH
    if WEIGHTED:
        total *= tl.load(row_weights + place, mask=live, other=0.0)[:, None]
    where = out + place.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=live[:, None] & (columns < n)[None, :])


class GroupedExperts:
    """Holds gate and up as [experts, 2 * inner, hidden], down as [experts, hidden, inner]."""

    def __init__(self, gates: list[torch.Tensor], ups: list[torch.Tensor], downs: list[torch.Tensor]) -> None:
        inner, hidden = gates[0].shape
        like = gates[0]
        self._both = torch.empty((len(gates), 2 * inner, hidden), dtype=like.dtype, device=like.device)
        self._down = torch.empty((len(gates), hidden, inner), dtype=like.dtype, device=like.device)
        for i, (gate, up, down) in enumerate(zip(gates, ups, downs, strict=True)):
            self._both[i, :inner], self._both[i, inner:], self._down[i] = gate, up, down
        self.weight_bytes = sum(t.numel() * t.element_size() for t in (self._both, self._down))

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        rows, top_k = ids.shape
        if not rows:
            return out
        num_experts = len(self._down)
        tile = tile_of(rows * top_k, num_experts)
        groups = Groups(*sort_by_expert(ids, num_experts, tile), rows * top_k, tile)
        both = product(x, self._both, groups, top_k, None)
        parts = product(silu_mul(both), self._down, groups, 1, weights)
        return out.add_(parts.view(rows, top_k, -1).sum(1))


def product(
    x: torch.Tensor, weight: torch.Tensor, groups: Groups, divisor: int, row_weights: torch.Tensor | None
) -> torch.Tensor:
    """[num_places, n] of x and weight [experts, n, k], each place by its own expert. Raises KernelInputError."""
    op, (n, k), num_places = "grouped_product", weight.shape[1:], groups.num_places
    checks.check_tensor(op, "x", x, weight.device, (weight.dtype,), whole=True)
    groups.check(op, x, k, divisor, row_weights)
    out = torch.empty((num_places, n), dtype=x.dtype, device=x.device)
    columns = 128 if groups.tile == 64 else 64
    grouped_product_kernel[(len(groups.tile_experts), launch.cdiv(n, columns))](
        x, weight, out, groups.places, groups.tile_experts, out if row_weights is None else row_weights, num_places, n, k,
        ROWS=groups.tile, COLUMNS=columns, DEPTH=DEPTH, DIVISOR=divisor, WEIGHTED=row_weights is not None,
        EVEN=k % DEPTH == 0, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


def make_experts(
    gates: list[torch.Tensor], ups: list[torch.Tensor], downs: list[torch.Tensor]
) -> GroupedExperts:
    return GroupedExperts(gates, ups, downs)

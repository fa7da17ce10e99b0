"""Triton on CUDA: one program an expert, which counts all choices, finds where its own belong, and writes them.

Programs need nothing of each other: each reads all choices, 4 kB for 64 tokens of 8 experts. A sort would take a
dozen launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ... import checks, launch

STRIP = 1024


@triton.jit(do_not_specialize=["total", "tiles"])
def sort_by_expert_kernel(
    ids, places, tile_experts, total, tiles, num_experts,
    EXPERTS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (num_experts + 1,); the last program fills what no expert needs. EXPERTS is num_experts rounded up to
    a power of two, to 32 at least: bins are counted a warp at a time.
    """
    mine = tl.program_id(0)
    within, which = tl.arange(0, BLOCK), tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, total, BLOCK):
        at = start + within
        expert = tl.load(ids + at, mask=at < total, other=0).to(tl.int32)
        counts += tl.histogram(expert, EXPERTS, mask=at < total)
    tiles_before = tl.sum(tl.where(which < mine, tl.cdiv(counts, TILE), 0), 0)
    if mine == num_experts:
        fill(tile_experts, tiles_before, tiles, -1, BLOCK)
        fill(places, tiles_before * TILE, tiles * TILE, total, BLOCK)
        return
    count = tl.sum(tl.where(which == mine, counts, 0), 0)
    if count == 0:
        return
    tiles_end = tiles_before + tl.cdiv(count, TILE)
    fill(tile_experts, tiles_before, tiles_end, mine, BLOCK)
    free = tiles_before * TILE
    for start in range(0, total, BLOCK):
        at = start + within
        chosen = tl.load(ids + at, mask=at < total, other=-1) == mine
        rank = tl.cumsum(chosen.to(tl.int32), 0)
        tl.store(places + free + rank - 1, at, mask=chosen)
        free += tl.max(rank, 0)
    fill(places, free, tiles_end * TILE, total, BLOCK)


@triton.jit
def fill(out, begin, end, value, BLOCK: tl.constexpr):
    """out[begin:end] = value, int32."""
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out + at, tl.zeros([BLOCK], tl.int32) + value, mask=at < end)


def sort_by_expert(
    ids: torch.Tensor, num_experts: int, tile: int, places: torch.Tensor, tile_experts: torch.Tensor
) -> None:
    """As the op. Raises KernelInputError, for an id out of range in debug mode only."""
    op = "sort_by_expert"
    checks.check_tensor(op, "ids", ids, ids.device, checks.LONGS, whole=True)
    if checks.debugging():
        checks.check_range(op, "ids", ids, 0, num_experts)
    if ids.numel():
        sort_by_expert_kernel[(num_experts + 1,)](
            ids, places, tile_experts, ids.numel(), len(tile_experts), num_experts,
            EXPERTS=max(32, launch.next_power_of_2(num_experts)), TILE=tile, BLOCK=STRIP, num_warps=4,
        )  # fmt: skip

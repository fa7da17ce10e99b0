"""Plain torch, any device: a stable sort, and each group moved to the start of a tile."""

from __future__ import annotations

import torch


def sort_by_expert(
    ids: torch.Tensor, num_experts: int, tile: int, places: torch.Tensor, tile_experts: torch.Tensor
) -> None:
    flat = ids.reshape(-1)
    total = len(flat)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + tile - 1) // tile * tile
    ends = padded.cumsum(0)
    order = torch.argsort(flat, stable=True)
    expert = flat[order]
    rank = torch.arange(total, device=ids.device) - (counts.cumsum(0) - counts)[expert]
    places.fill_(total)
    places[(ends - padded)[expert] + rank] = order.to(torch.int32)
    firsts = torch.arange(len(tile_experts), device=ids.device) * tile
    owner = torch.searchsorted(ends, firsts, right=True)
    tile_experts.copy_(torch.where(owner < num_experts, owner, -1))

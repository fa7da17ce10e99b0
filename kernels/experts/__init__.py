"""The feed-forward layer of a mixture of experts: a router's choice, and each token through its experts."""

from __future__ import annotations

from typing import Protocol

import torch

from ..dispatch import Dispatch

_best = Dispatch(__name__, "make_experts")


class Experts(Protocol):
    """y[t] = sum over j of weights[t, j] * expert ids[t, j] of x[t]; an expert is down(silu(gate x) * up x)."""

    weight_bytes: int

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Adds the result to out [T, hidden]; x [T, hidden], contiguous, may not be out.

        ids int64 [T, k], weights float32 [T, k]. A row's experts are summed in the order of its ids.
        Nothing waits for the device. Returns out.
        """
        ...


def route(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64 [T, top_k], weights float32 [T, top_k]) of router logits [T, experts], heaviest first.

    Weights are the softmax over all experts; `renormalise` makes those of a token sum to 1 (Mixtral,
    arXiv 2401.04088; Qwen3-MoE where its config says so).
    """
    weights, ids = logits.float().softmax(-1).topk(top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights


def make_experts(gates: list[torch.Tensor], ups: list[torch.Tensor], downs: list[torch.Tensor]) -> Experts:
    """From each expert's weights: gate and up [inner, hidden], down [hidden, inner]. Raises ValueError."""
    inner, hidden = gates[0].shape
    sizes = {tuple(t.shape) for t in (*gates, *ups)} | {tuple(t.shape[::-1]) for t in downs}
    if sizes != {(inner, hidden)} or not len(gates) == len(ups) == len(downs):
        raise ValueError(f"experts: weights of sizes {sorted(sizes)} do not fit each other")
    return _best(gates[0])(gates, ups, downs)


def tile_of(num_places: int, num_experts: int) -> int:
    """Places of one tile: 64 fill Hopper's warpgroup instructions; a decode batch spreads thin, and weights bound it."""
    return 64 if num_places >= 32 * num_experts else 16


def sort_by_expert(ids: torch.Tensor, num_experts: int, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(places int32 [tiles * tile], tile_experts int32 [tiles]): flat indices into ids [T, k], grouped by expert.

    Each group starts on a tile. Places past a group hold T * k, tiles past the last hold -1. The number of
    tiles is T * k / tile + experts at most, whatever the ids are, so no value has to come back.
    """
    flat = ids.reshape(-1)
    total = len(flat)
    tiles = min(-(-total // tile) + num_experts, total)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + tile - 1) // tile * tile
    ends = padded.cumsum(0)
    order = torch.argsort(flat, stable=True)
    expert = flat[order]
    rank = torch.arange(total, device=ids.device) - (counts.cumsum(0) - counts)[expert]
    places = torch.full((tiles * tile,), total, dtype=torch.int32, device=ids.device)
    places[(ends - padded)[expert] + rank] = order.to(torch.int32)
    firsts = torch.arange(tiles, device=ids.device) * tile
    owner = torch.searchsorted(ends, firsts, right=True)
    return places, torch.where(owner < num_experts, owner, -1).to(torch.int32)

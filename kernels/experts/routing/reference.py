"""Plain torch, any device and dtype."""

from __future__ import annotations

import torch


def route(logits: torch.Tensor, renormalise: bool, ids: torch.Tensor, weights: torch.Tensor) -> None:
    heaviest, chosen = logits.float().softmax(-1).topk(ids.shape[1], dim=-1)
    if renormalise:
        heaviest = heaviest / heaviest.sum(-1, keepdim=True)
    ids.copy_(chosen)
    weights.copy_(heaviest)

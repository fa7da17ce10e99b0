"""A router's choice: the experts of each token and what each of them counts."""

from __future__ import annotations

import torch

from ...checks import KernelInputError
from ...dispatch import Dispatch

_best = Dispatch(__name__, "route")


def route(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64 [T, top_k], weights float32 [T, top_k]) of router logits [T, experts], heaviest first.

    logits: any float dtype, rows contiguous, any row stride. Weights are the softmax over all experts;
    `renormalise` makes those of a token sum to 1 (Mixtral, arXiv 2401.04088; Qwen3-MoE where its config says
    so). Of equal logits a GPU takes the lower expert first. Raises KernelInputError, a ValueError that names the
    argument.
    """
    if logits.ndim != 2 or not 1 <= top_k <= logits.shape[1]:
        raise KernelInputError("route", "top_k", f"is {top_k}, logits are {tuple(logits.shape)}")
    size = (len(logits), top_k)
    ids = torch.empty(size, dtype=torch.int64, device=logits.device)
    weights = torch.empty(size, dtype=torch.float32, device=logits.device)
    _best(logits)(logits, renormalise, ids, weights)
    return ids, weights

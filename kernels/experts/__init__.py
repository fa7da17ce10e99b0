"""The feed-forward layer of a mixture of experts: a router's choice, and each token through its experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..dispatch import Dispatch
from .grouping import sort_by_expert, tile_of
from .routing import route

__all__ = ["Experts", "make_experts", "route", "sort_by_expert", "tile_of"]

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


def make_experts(gates: list[torch.Tensor], ups: list[torch.Tensor], downs: list[torch.Tensor]) -> Experts:
    """From each expert's weights: gate and up [inner, hidden], down [hidden, inner]. Raises ValueError."""
    check_expert_sizes(gates, ups, downs)
    return _best(gates[0])(gates, ups, downs)


def check_expert_sizes(
    gates: Sequence[torch.Tensor], ups: Sequence[torch.Tensor], downs: Sequence[torch.Tensor]
) -> None:
    """Raises ValueError if experts differ, or the three weights of one do not fit each other."""
    sizes = {tuple(t.shape) for t in (*gates, *ups)} | {tuple(t.shape[::-1]) for t in downs}
    if len(sizes) != 1 or not len(gates) == len(ups) == len(downs):
        raise ValueError(f"experts: weights of sizes {sorted(sizes)} do not fit each other")

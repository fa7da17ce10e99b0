"""One expert after the other over the rows that chose it, with the dense layers of the device: any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..gated_linear import make_gated_linear
from ..linear import make_linear


class LoopedExperts:
    """An expert that no row chose is not read."""

    def __init__(self, experts: Sequence[Callable[[torch.Tensor], torch.Tensor]], weight_bytes: int) -> None:
        self._experts, self.weight_bytes = experts, weight_bytes

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        rows, top_k = ids.shape
        flat = ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=len(self._experts)).tolist()
        results = torch.empty((rows * top_k, x.shape[1]), dtype=x.dtype, device=x.device)
        done = 0
        for expert, count in enumerate(counts):
            if count:
                chosen = order[done : done + count]
                results[chosen] = self._experts[expert](x.index_select(0, chosen // top_k))
                done += count
        parts = results.view(rows, top_k, x.shape[1])
        for j in range(top_k):  # in a fixed order, so that a row's bits do not depend on its company
            out += (parts[:, j] * weights[:, j, None]).to(out.dtype)
        return out


class GatedExpert:
    """down(silu(gate x) * up x)."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
        self._gated, self._down = make_gated_linear(gate, up), make_linear(down)
        self.weight_bytes = self._gated.weight_bytes + self._down.weight_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(self._gated(x))


def make_experts(
    gates: list[torch.Tensor], ups: list[torch.Tensor], downs: list[torch.Tensor]
) -> LoopedExperts:
    experts = [GatedExpert(*parts) for parts in zip(gates, ups, downs, strict=True)]
    return LoopedExperts(experts, sum(expert.weight_bytes for expert in experts))

"""One expert after the other over the rows that chose it, with the dense layers of the device: any device."""

from __future__ import annotations

import torch

from ..gated_linear import make_gated_linear
from ..linear import make_linear


class LoopedExperts:
    """Holds each expert as two linear layers; an expert that no row chose is not read."""

    def __init__(self, gates: list[torch.Tensor], ups: list[torch.Tensor], downs: list[torch.Tensor]) -> None:
        self._gated = [make_gated_linear(gate, up) for gate, up in zip(gates, ups, strict=True)]
        self._down = [make_linear(down) for down in downs]
        self.weight_bytes = sum(layer.weight_bytes for layer in (*self._gated, *self._down))

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        rows, top_k = ids.shape
        flat = ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=len(self._down)).tolist()
        results = torch.empty((rows * top_k, x.shape[1]), dtype=x.dtype, device=x.device)
        done = 0
        for expert, count in enumerate(counts):
            if count:
                chosen = order[done : done + count]
                inner = self._gated[expert](x.index_select(0, chosen // top_k))
                results[chosen] = self._down[expert](inner)
                done += count
        parts = results.view(rows, top_k, x.shape[1])
        for j in range(top_k):  # in a fixed order, so that a row's bits do not depend on its company
            out += (parts[:, j] * weights[:, j, None]).to(out.dtype)
        return out


def make_experts(
    gates: list[torch.Tensor], ups: list[torch.Tensor], downs: list[torch.Tensor]
) -> LoopedExperts:
    return LoopedExperts(gates, ups, downs)

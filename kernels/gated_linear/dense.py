"""One product of torch's over both weights, then the gate: what runs on a GPU in 16-bit types, and wherever no kernel is."""

from __future__ import annotations

import torch

from ..linear import InputNorm, make_linear
from ..silu_mul import silu_mul


class DenseGatedLinear:
    """Gate and up as one linear layer."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, norm: InputNorm | None) -> None:
        self._both = make_linear(torch.cat([gate, up]), None, norm)
        self.out_features, self.in_features = gate.shape
        self.weight_bytes = self._both.weight_bytes

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return silu_mul(self._both(x), out)


def make_gated_linear(gate: torch.Tensor, up: torch.Tensor, norm: InputNorm | None) -> DenseGatedLinear:
    return DenseGatedLinear(gate, up, norm)

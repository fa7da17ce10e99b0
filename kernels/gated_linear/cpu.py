"""float32 on a CPU: blocks of gate and up alternate, so that the gate is applied while both are in the cache."""

from __future__ import annotations

import torch

from ..linear import InputNorm
from ..native.product import GATE, pack, product


class PackedGatedLinear:
    """Holds both weights as [blocks, 2, K, WIDTH]."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, norm: InputNorm | None) -> None:
        self.out_features, self.in_features = gate.shape
        self._weight = pack(gate, up)
        self._norm = None if norm is None else norm.weight.contiguous()
        self._eps = norm.eps if norm else 0.0
        self.weight_bytes = self._weight.numel() * 4
        self._addresses = 0 if self._norm is None else self._norm.data_ptr(), self._weight.data_ptr()

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        rows, k, n = x.shape[0], self.in_features, self.out_features
        if x.shape[1] != k or (out is not None and out.shape != (rows, n)):
            raise ValueError(f"gated_linear {k} -> {n}: x is {tuple(x.shape)}, or out does not fit it")
        if out is None:
            out = torch.empty((rows, n))
        norm, weight = self._addresses
        product(x, norm, self._eps, weight, 0, out, GATE)
        return out


def make_gated_linear(gate: torch.Tensor, up: torch.Tensor, norm: InputNorm | None) -> PackedGatedLinear:
    return PackedGatedLinear(gate, up, norm)

"""float32 on a CPU: weights packed once, Numba's product."""

from __future__ import annotations

import torch

from ..native.product import ADD, STORE, pack, product
from ..native.vector import WIDTH
from . import InputNorm, check_sizes


class PackedLinear:
    """Holds W in blocks [ceil(N / WIDTH), K, WIDTH]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, norm: InputNorm | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = pack(weight).squeeze(1)
        self._bias = None if bias is None else bias.contiguous()
        self._norm = None if norm is None else norm.weight.contiguous()
        self._eps = norm.eps if norm else 0.0
        self.weight_bytes = self._weight.numel() * 4
        self._addresses = tuple(
            0 if t is None else t.data_ptr() for t in (self._norm, self._weight, self._bias)
        )

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor | None = None, *, accumulate: bool = False
    ) -> torch.Tensor:
        check_sizes(self, x, out)
        if out is None:
            out = torch.empty((x.shape[0], self.out_features))
        norm, weight, bias = self._addresses
        product(x, norm, self._eps, weight, bias, out, ADD if accumulate else STORE)
        return out

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self._weight[indices // WIDTH, :, indices % WIDTH]


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, norm: InputNorm | None) -> PackedLinear:
    return PackedLinear(weight, bias, norm)

"""Plain torch, any device and dtype: the weight as it came."""

from __future__ import annotations

import torch

from . import check_sizes


class DenseLinear:
    """Holds W [out_features, in_features] and calls torch's own product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        self._weight, self._bias = weight.contiguous(), bias

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor | None = None, *, accumulate: bool = False
    ) -> torch.Tensor:
        check_sizes(self, x, out)
        product = torch.nn.functional.linear(x, self._weight, self._bias)
        if out is None:
            return product
        return out.add_(product) if accumulate else out.copy_(product)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self._weight.index_select(0, indices)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> DenseLinear:
    return DenseLinear(weight, bias)

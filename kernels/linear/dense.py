"""torch's own product with the weight as it came: what runs on a GPU in 16-bit types, and wherever else no kernel is."""

from __future__ import annotations

import torch

from ..rms_norm import rms_norm
from . import InputNorm, check_sizes


class DenseLinear:
    """Holds W [out_features, in_features] and calls torch's own product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, norm: InputNorm | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        self._weight, self._bias, self._norm = weight.contiguous(), bias, norm

    def __call__(
        self,
        x: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        accumulate: bool = False,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `Linear.__call__`; `added` [T, in_features] is added to x in place before the norm."""
        check_sizes(self, x, out)
        if self._norm is not None:
            x = rms_norm(x, self._norm.weight, self._norm.eps, added=added)
        elif added is not None:
            x += added
        if out is None:
            return torch.nn.functional.linear(x, self._weight, self._bias)
        # Into `out` by the product itself: a copy, or a sum, would be a pass of its own.
        if self._bias is None:
            weight = self._weight.t()
            return out.addmm_(x, weight) if accumulate else torch.mm(x, weight, out=out)
        if accumulate:
            return out.add_(torch.nn.functional.linear(x, self._weight, self._bias))
        return torch.addmm(self._bias, x, self._weight.t(), out=out)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self._weight.index_select(0, indices)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, norm: InputNorm | None) -> DenseLinear:
    return DenseLinear(weight, bias, norm)

"""Matrix product with a fixed weight, laid out once for the device it runs on.

Quantised weights are further classes beside `DenseLinear` with the same methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ..dispatch import Dispatch

_best = Dispatch(__name__, "make_linear", otherwise="dense")


@dataclass(frozen=True, slots=True)
class InputNorm:
    """RMSNorm of a layer's input, done as part of reading it."""

    weight: torch.Tensor  # [in_features]
    eps: float


class Linear(Protocol):
    """y = norm(x) W^T + b with W [out_features, in_features]; norm and b where they are given."""

    in_features: int
    out_features: int
    weight_bytes: int

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor | None = None, *, accumulate: bool = False
    ) -> torch.Tensor:
        """x [T, in_features], contiguous, to out [T, out_features], contiguous, made when not given.

        `accumulate` adds the product to what `out` holds; out may not be x. On the CPU each row's bits
        depend on that row alone, not on T. Raises ValueError on a size mismatch.
        """
        ...

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of W, [len(indices), in_features]: a tied embedding reads the head's weight."""
        ...


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, norm: InputNorm | None = None
) -> Linear:
    """Linear layer from W [out_features, in_features] and b [out_features], on the weight's device.

    The weight may be copied into another layout; keep no reference to it. Raises ValueError.
    """
    sizes = [tuple(weight.shape)] + [tuple(t.shape) for t in (bias, norm and norm.weight) if t is not None]
    fits = weight.ndim == 2 and (bias is None or bias.shape == weight.shape[:1])
    if not fits or (norm is not None and norm.weight.shape != weight.shape[1:]):
        raise ValueError(f"linear: weight, bias and norm of sizes {sizes} do not fit each other")
    return _best(weight)(weight, bias, norm)


def check_sizes(layer: Linear, x: torch.Tensor, out: torch.Tensor | None) -> None:
    """Raises ValueError if x or out do not fit the layer."""
    if x.shape[1] != layer.in_features or (out is not None and out.shape != (x.shape[0], layer.out_features)):
        raise ValueError(
            f"linear {layer.in_features} -> {layer.out_features}: x is {tuple(x.shape)}, "
            f"out is {None if out is None else tuple(out.shape)}"
        )

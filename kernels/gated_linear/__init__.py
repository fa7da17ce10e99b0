"""First half of a SwiGLU feed-forward layer (arXiv 2002.05202): two products and their gate, as one op."""

from __future__ import annotations

from typing import Protocol

import torch

from ..dispatch import Dispatch
from ..linear import InputNorm

_best = Dispatch(__name__, "make_gated_linear", otherwise="dense")


class GatedLinear(Protocol):
    """y = silu(n Wg^T) * (n Wu^T) with n = norm(x) and both weights [out_features, in_features]."""

    in_features: int
    out_features: int
    weight_bytes: int

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, in_features], contiguous, to out [T, out_features], contiguous, made when not given.

        On the CPU each row's bits depend on that row alone. Raises ValueError on a size mismatch.
        """
        ...


def make_gated_linear(gate: torch.Tensor, up: torch.Tensor, norm: InputNorm | None = None) -> GatedLinear:
    """The op from its two weights, on their device. They may be copied into another layout. Raises ValueError."""
    if gate.ndim != 2 or gate.shape != up.shape or (norm and norm.weight.shape != gate.shape[1:]):
        raise ValueError(f"gated_linear: gate {tuple(gate.shape)}, up {tuple(up.shape)}, norm {norm}")
    return _best(gate)(gate, up, norm)

"""Plain torch, any device: weights multiplied out, one expert after the other over the rows that chose it."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from ..reference import LoopedExperts
from . import Mxfp4Weight


def clamped_swiglu(both: torch.Tensor, limit: float, alpha: float) -> torch.Tensor:
    """[rows, inner] of [rows, 2 * inner], whose columns alternate gate and up."""
    gate, up = both[:, ::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


class DenseExpert:
    """One expert, its weights multiplied out."""

    def __init__(
        self,
        gate_up: tuple[torch.Tensor, torch.Tensor | None],
        down: tuple[torch.Tensor, torch.Tensor | None],
        limits: tuple[float, float],
    ) -> None:
        """Weights and biases; `limits` are limit and alpha."""
        self._gate_up, self._down, self._limits = gate_up, down, limits

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(clamped_swiglu(linear(x, *self._gate_up), *self._limits), *self._down)


def make_mxfp4_experts(
    gate_up: Mxfp4Weight, down: Mxfp4Weight, dtype: torch.dtype, limit: float, alpha: float
) -> LoopedExperts:
    held, num_bytes = [], 0
    for weight in (gate_up, down):
        dense = weight.dense(dtype)
        biases = [None] * len(dense) if weight.bias is None else weight.bias.to(dtype)
        held.append(list(zip(dense, biases, strict=True)))
        num_bytes += dense.numel() * dense.element_size()
    return LoopedExperts(
        [DenseExpert(*parts, (limit, alpha)) for parts in zip(*held, strict=True)], num_bytes
    )

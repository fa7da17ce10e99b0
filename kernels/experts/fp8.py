"""A mixture of experts whose weights are in FP8 (e4m3), its inputs quantised as they come.

On a GPU two grouped products over all experts at once; elsewhere the same arithmetic in float32.
"""

from __future__ import annotations

import torch

from ..fp8 import BLOCK
from ..linear.fp8 import Fp8Weight, join
from ..quantize_rows import quantize_rows
from . import check_expert_sizes, sort_by_expert, tile_of
from .fp8_grouped import ExpertWeights, Groups, grouped_product


class Fp8Experts:
    """Implements `Experts`. Holds gate and up as [experts, 2 * inner, hidden], down as [experts, hidden, inner]."""

    def __init__(
        self,
        gates: list[Fp8Weight],
        ups: list[Fp8Weight],
        downs: list[Fp8Weight],
        input_scale: torch.Tensor | None = None,
        down_scale: torch.Tensor | None = None,
    ) -> None:
        """`input_scale` and `down_scale` (float32, one element) are calibrated scales of the inputs of the two
        products, over all experts. Raises ValueError where weights do not fit each other.
        """
        check_expert_sizes(*([w.values for w in weights] for weights in (gates, ups, downs)))
        inner, hidden = gates[0].values.shape
        self._both = _stack([join([gate, up]) for gate, up in zip(gates, ups, strict=True)])
        self._down = _stack(downs)
        blocked = self._both.is_blocked
        if blocked != self._down.is_blocked or (blocked and (inner % BLOCK or hidden % BLOCK)):
            raise ValueError(
                f"experts: blocks of {BLOCK} do not divide {inner} x {hidden}, or not all have them"
            )
        self._group = BLOCK if blocked else 0
        self._scales = (None, None) if blocked else (input_scale, down_scale)
        self.weight_bytes = self._both.num_bytes + self._down.num_bytes

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """As `Experts.__call__`."""
        rows, top_k = ids.shape
        if not rows:
            return out
        num_experts = len(self._down.values)
        tile = tile_of(rows * top_k, num_experts)
        groups = Groups(*sort_by_expert(ids, num_experts, tile), rows * top_k, tile)
        values, scales = quantize_rows(x, group=self._group, static_scale=self._scales[0])
        both = grouped_product(values, scales, self._both, groups, top_k, None, x.dtype)
        values, scales = quantize_rows(both, group=self._group, gated=True, static_scale=self._scales[1])
        parts = grouped_product(values, scales, self._down, groups, 1, weights, x.dtype)
        return out.add_(parts.view(rows, top_k, -1).sum(1))


def _stack(weights: list[Fp8Weight]) -> ExpertWeights:
    """One tensor over all experts, filled one by one; scales of whole tensors become scales of rows."""
    first = weights[0]
    if any(weight.is_blocked != first.is_blocked for weight in weights):
        raise ValueError("experts: some have scales in blocks and some have not")
    rows, columns = first.values.shape
    size = first.scales.shape if first.is_blocked else (rows,)
    values = torch.empty((len(weights), rows, columns), dtype=first.values.dtype, device=first.values.device)
    scales = torch.empty((len(weights), *size), dtype=torch.float32, device=first.values.device)
    for i, weight in enumerate(weights):
        values[i], scales[i] = weight.values, weight.scales
    return ExpertWeights(values, scales)

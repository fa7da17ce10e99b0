"""Plain torch, any device: one tile after the other."""

from __future__ import annotations

import torch

from ...fp8 import BLOCK
from . import ExpertWeights, Groups


def grouped_product(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weights: ExpertWeights,
    groups: Groups,
    divisor: int,
    row_weights: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    n, k = weights.values.shape[1:]
    wide = x.float() * x_scales.repeat_interleave(BLOCK if weights.is_blocked else k, 1)
    for tile, expert in zip(groups.places.view(-1, groups.tile), groups.tile_experts.tolist(), strict=True):
        if expert < 0:
            continue
        places = tile[tile < groups.num_places].long()
        scales = weights.scales[expert]
        if weights.is_blocked:
            scales = scales.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)
        else:
            scales = scales[:, None]
        product = wide[places // divisor] @ (weights.values[expert].float() * scales).t()
        if row_weights is not None:
            product *= row_weights.reshape(-1)[places, None]
        out[places] = product.to(out.dtype)

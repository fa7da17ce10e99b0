"""Plain torch, any device."""

from __future__ import annotations

import torch

from . import BLOCK


def block_product(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, w_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """x e4m3 [T, K], x_scales [T, K / 128], weight e4m3 [N, K], w_scales [ceil(N / 128), K / 128]; out [T, N]."""
    rows, columns = weight.shape
    wide = w_scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    product = (x.float() * x_scales.repeat_interleave(BLOCK, 1)) @ (weight.float() * wide).t()
    out.copy_(product)

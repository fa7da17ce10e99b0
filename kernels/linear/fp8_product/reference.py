"""Plain torch, any device."""

from __future__ import annotations

import torch

from ...fp8 import BLOCK


def fp8_product(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, w_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """x e4m3 [T, K], weight e4m3 [N, K], out [T, N]; scales float32: x_scales [T, 1] and w_scales [N], or
    [T, K / 128] and [ceil(N / 128), K / 128].
    """
    (rows, columns), dense = weight.shape, weight.float()
    if w_scales.ndim == 2:
        wide = w_scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
        product = (x.float() * x_scales.repeat_interleave(BLOCK, 1)) @ (dense * wide).t()
    else:
        product = (x.float() * x_scales) @ (dense * w_scales[:, None]).t()
    out.copy_(product)

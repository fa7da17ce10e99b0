"""Plain torch, any device and dtype."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, added: torch.Tensor | None = None
) -> None:
    if added is not None:
        x += added
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    out.copy_(weight * wide.to(x.dtype))

"""Plain torch, any device and dtype."""

from __future__ import annotations

import torch

from ..fp8 import FP8_MAX
from ..linear import InputNorm
from . import MIN_SCALE


def quantize_rows(
    x: torch.Tensor,
    group: int,
    norm: InputNorm | None,
    gated: bool,
    static_scale: torch.Tensor | None,
    values: torch.Tensor,
    scales: torch.Tensor,
    added: torch.Tensor | None = None,
) -> None:
    if added is not None:
        x += added
    wide = x.float()
    if norm is not None:
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight.float()
    if gated:
        gate, up = wide.chunk(2, dim=-1)
        wide = torch.nn.functional.silu(gate) * up
    grouped = wide.view(wide.shape[0], scales.shape[1], -1) if len(wide) else wide[:, None]
    if static_scale is not None:
        scales.copy_(static_scale.reshape(1, 1).expand_as(scales))
    else:
        scales.copy_((grouped.abs().amax(-1) / FP8_MAX).clamp_min(MIN_SCALE))
    scaled = (grouped / scales[..., None]).clamp(-FP8_MAX, FP8_MAX)
    values.copy_(scaled.view_as(wide).to(values.dtype))

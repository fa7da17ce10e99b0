"""Rows to FP8 (e4m3) with a scale a row or a group of columns, after the norm or the gate that made them."""

from __future__ import annotations

import torch

from ..dispatch import Dispatch
from ..linear import InputNorm

_best = Dispatch(__name__, "quantize_rows")

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0  # largest finite e4m3 (arXiv 2209.05433)
MIN_SCALE = 1e-12  # a row of zeros must not divide by zero


def quantize_rows(
    x: torch.Tensor,
    *,
    group: int = 0,
    norm: InputNorm | None = None,
    gated: bool = False,
    static_scale: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values e4m3 [T, K], scales float32 [T, K / group]) with x = values * scales as nearly as e4m3 allows.

    x: [T, K], rows contiguous, any row stride; [T, 2 K] when `gated`, gate first, and silu(gate) * up is
    what gets quantised; `norm` is applied to x before, and `added` [T, K], contiguous, is added to x in place
    before that, so that a residual sum costs no pass of its own. A scale belongs to `group` columns (a divisor of K
    and a power of two), to the whole row when 0. A `static_scale` (float32, one element) replaces the
    row's own, and values beyond its range are clamped. Raises ValueError on a size mismatch.
    """
    width = x.shape[1] // 2 if gated else x.shape[1]
    if (group and (width % group or group & (group - 1))) or (gated and (x.shape[1] % 2 or norm is not None)):
        raise ValueError(f"quantize_rows: rows of {x.shape[1]}, group {group}, gated {gated}, norm {norm}")
    if norm is not None and norm.weight.shape[0] != width:
        raise ValueError(f"quantize_rows: norm of {norm.weight.shape[0]} elements for rows of {width}")
    if added is not None and (gated or added.shape != x.shape):
        raise ValueError(
            f"quantize_rows: added is {tuple(added.shape)}, x is {tuple(x.shape)}, gated {gated}"
        )
    if group and static_scale is not None:
        raise ValueError("quantize_rows: a static scale belongs to whole rows, not to groups")
    groups = width // group if group else 1
    values = torch.empty((x.shape[0], width), dtype=FP8, device=x.device)
    scales = torch.empty((x.shape[0], groups), dtype=torch.float32, device=x.device)
    _best(x)(x, group, norm, gated, static_scale, values, scales, added)
    return values, scales

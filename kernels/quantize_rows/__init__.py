"""Rows to FP8 (e4m3) with a scale a row or a group of columns, after the norm or the gate that made them."""

from __future__ import annotations

import torch

from ..checks import KernelInputError
from ..dispatch import Dispatch
from ..fp8 import FP8
from ..linear import InputNorm

_best = Dispatch(__name__, "quantize_rows")

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
    row's own, and values beyond its range are clamped. Raises KernelInputError, a
    ValueError that names the argument.
    """
    width = x.shape[1] // 2 if gated else x.shape[1]
    op = "quantize_rows"
    if gated and (x.shape[1] % 2 or norm is not None):
        raise KernelInputError(op, "gated", f"needs rows of gate and up and no norm; rows are {x.shape[1]}")
    if group and (width % group or group & (group - 1)):
        raise KernelInputError(op, "group", f"is {group}, must be a power of two that divides {width}")
    if norm is not None and norm.weight.shape[0] != width:
        raise KernelInputError(op, "norm", f"has {norm.weight.shape[0]} elements, rows have {width}")
    if added is not None and (gated or added.shape != x.shape):
        raise KernelInputError(op, "added", f"is {tuple(added.shape)}, x is {tuple(x.shape)}, gated {gated}")
    if static_scale is not None and (group or static_scale.numel() != 1):
        raise KernelInputError(op, "static_scale", "is one number and belongs to whole rows, not to groups")
    groups = width // group if group else 1
    values = torch.empty((x.shape[0], width), dtype=FP8, device=x.device)
    scales = torch.empty((x.shape[0], groups), dtype=torch.float32, device=x.device)
    _best(x)(x, group, norm, gated, static_scale, values, scales, added)
    return values, scales

"""Root-mean-square normalisation (arXiv 1910.07467)."""

from __future__ import annotations

import torch

from ..checks import KernelInputError, check_size
from ..dispatch import Dispatch

_best = Dispatch(__name__, "rms_norm")


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32 whatever the dtype.

    x: [T, H], rows contiguous, any row stride; weight: [H]; out: [T, H], contiguous, made when not
    given. `added` [T, H], contiguous, is added to x in place before, so that a residual sum costs no pass of
    its own. Each row's bits depend on that row alone. Returns out. Raises KernelInputError, a ValueError that names the argument.
    """
    if weight.shape[0] != x.shape[-1]:
        raise KernelInputError(
            "rms_norm", "weight", f"has {weight.shape[0]} elements, rows have {x.shape[-1]}"
        )
    if added is not None:
        check_size("rms_norm", "added", added, tuple(x.shape))
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    check_size("rms_norm", "out", out, tuple(x.shape))
    _best(x)(x, weight, eps, out, added)
    return out

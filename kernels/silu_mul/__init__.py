"""The gate of a SwiGLU feed-forward layer (arXiv 2002.05202)."""

from __future__ import annotations

import torch

from ..checks import KernelInputError, check_size
from ..dispatch import Dispatch

_best = Dispatch(__name__, "silu_mul")


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up, where gate_up [T, 2 * I] holds the gate in its first half; contiguous.

    out: [T, I], contiguous, made when not given. Returns out. Raises KernelInputError, a
    ValueError that names the argument.
    """
    rows, width = gate_up.shape
    if width % 2:
        raise KernelInputError("silu_mul", "gate_up", f"has rows of {width}, which no gate and up divide")
    if out is not None:
        check_size("silu_mul", "out", out, (rows, width // 2))
    if out is None:
        out = torch.empty((rows, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    _best(gate_up)(gate_up, out)
    return out

"""The gate of a SwiGLU feed-forward layer (arXiv 2002.05202)."""

from __future__ import annotations

import torch

from ..dispatch import Dispatch

_best = Dispatch(__name__, "silu_mul")


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up, where gate_up [T, 2 * I] holds the gate in its first half; contiguous.

    out: [T, I], contiguous, made when not given. Returns out. Raises ValueError on a size mismatch.
    """
    rows, width = gate_up.shape
    if width % 2 or (out is not None and out.shape != (rows, width // 2)):
        raise ValueError(f"silu_mul: gate_up is {rows} x {width}, out must be {rows} x {width // 2}")
    if out is None:
        out = torch.empty((rows, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    _best(gate_up)(gate_up, out)
    return out

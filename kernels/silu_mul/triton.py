"""Triton on CUDA: a program computes a strip of one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks, launch

STRIP = 1024


@triton.jit
def silu_mul_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    """Grid (T, strips). gate_up [T, 2 * width], out [T, width], contiguous."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=mask)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """As the op. Raises KernelInputError."""
    rows, width = out.shape
    checks.check_tensor("silu_mul", "gate_up", gate_up, gate_up.device, checks.HALVES, whole=True)
    checks.check_tensor("silu_mul", "out", out, gate_up.device, checks.HALVES, whole=True)
    if rows:
        silu_mul_kernel[(rows, launch.cdiv(width, STRIP))](gate_up, out, width, BLOCK=STRIP, num_warps=4)

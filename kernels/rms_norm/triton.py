"""Triton on CUDA: one program a row, the row held in registers; a residual is added on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks, launch


@triton.jit
def rms_norm_kernel(x, added, weight, out, x_stride, width, eps, WIDTH: tl.constexpr, ADDED: tl.constexpr):
    """Grid (T,). Rows of out and added are contiguous; WIDTH is width rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    mask = columns < width
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0)
    if ADDED:
        more = tl.load(added + row * width + columns, mask=mask, other=0.0)
        # Rounded as it is kept: the norm sees what the next layer will see.
        values = (values.to(tl.float32) + more.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(x + row * x_stride + columns, values, mask=mask)
    values = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    weights = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, (values * scale * weights).to(out.dtype.element_ty), mask=mask)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, added: torch.Tensor | None = None
) -> None:
    """As the op. Raises KernelInputError."""
    rows, width = x.shape
    op, device = "rms_norm", x.device
    checks.check_tensor(op, "x", x, device, checks.HALVES)
    checks.check_tensor(op, "weight", weight, device, checks.HALVES, whole=True)
    checks.check_tensor(op, "out", out, device, checks.HALVES, whole=True)
    if added is not None:
        checks.check_tensor(op, "added", added, device, checks.HALVES, whole=True)
    if rows:
        rms_norm_kernel[(rows,)](
            x, out if added is None else added, weight, out, x.stride(0), width, eps,
            WIDTH=launch.next_power_of_2(width), ADDED=added is not None, num_warps=launch.warps_of(width),
        )  # fmt: skip

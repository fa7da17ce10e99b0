"""Triton on CUDA: one program a row; residual, norm or gate, scale and conversion in registers.

Rows that registers do not hold go by in strips, twice where the row has a scale of its own: the second time they come
from the second-level cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks, launch
from ..fp8 import FP8_MAX
from ..linear import InputNorm
from . import MIN_SCALE

WIDEST = 32768  # columns that the registers of a program hold
STRIP = 8192  # columns of a wider row at a time


@triton.jit
def quantize_rows_kernel(
    x, added, weight, static_scale, values, scales, x_stride, width, eps,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, NUM_GROUPS: tl.constexpr, ADDED: tl.constexpr,
    HAS_NORM: tl.constexpr, GATED: tl.constexpr, STATIC: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    """Grid (T,). WIDTH is `width` rounded up to a power of two, GROUPS what that makes of NUM_GROUPS."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    mask = columns < width
    numbers = tl.load(x + row * x_stride + columns, mask=mask, other=0.0)
    if ADDED:
        more = tl.load(added + row * width + columns, mask=mask, other=0.0)
        # Rounded as it is kept: the norm sees what the next layer will see.
        numbers = (numbers.to(tl.float32) + more.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(x + row * x_stride + columns, numbers, mask=mask)
    numbers = numbers.to(tl.float32)
    if GATED:
        up = tl.load(x + row * x_stride + width + columns, mask=mask, other=0.0).to(tl.float32)
        numbers = numbers * tl.sigmoid(numbers) * up
    if HAS_NORM:
        factor = tl.rsqrt(tl.sum(numbers * numbers, 0) / width + eps)
        numbers = numbers * factor * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    grouped = tl.reshape(numbers, [GROUPS, WIDTH // GROUPS])
    if STATIC:
        scale = tl.full([GROUPS], 1.0, tl.float32) * tl.load(static_scale)
    else:
        scale = tl.maximum(tl.max(tl.abs(grouped), 1) / LARGEST, SMALLEST)
    scaled = tl.minimum(tl.maximum(grouped / scale[:, None], -LARGEST), LARGEST)
    narrow = tl.reshape(scaled, [WIDTH]).to(values.dtype.element_ty)
    tl.store(values + row * width + columns, narrow, mask=mask)
    which = tl.arange(0, GROUPS)
    tl.store(scales + row * NUM_GROUPS + which, scale, mask=which < NUM_GROUPS)


@triton.jit
def strip_of(x, start, width, STRIP: tl.constexpr, GATED: tl.constexpr):
    """(columns, float32 numbers) of a strip of a row, gated where it is; zeros past the end."""
    columns = start + tl.arange(0, STRIP)
    numbers = tl.load(x + columns, mask=columns < width, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(x + width + columns, mask=columns < width, other=0.0).to(tl.float32)
        numbers = numbers * tl.sigmoid(numbers) * up
    return columns, numbers


@triton.jit
def quantize_wide_rows_kernel(
    x, static_scale, values, scales, x_stride, width,
    STRIP: tl.constexpr, GROUPS: tl.constexpr, GROUPED: tl.constexpr,
    GATED: tl.constexpr, STATIC: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    """Grid (T,). GROUPS are those of a strip where the row is GROUPED, else 1."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    scale = tl.full([GROUPS], 1.0, tl.float32)
    if STATIC:
        scale *= tl.load(static_scale)
    elif not GROUPED:
        largest = tl.zeros([STRIP], tl.float32)
        for start in range(0, width, STRIP):
            _, numbers = strip_of(x, start, width, STRIP, GATED)
            largest = tl.maximum(largest, tl.abs(numbers))
        scale *= tl.maximum(tl.max(largest, 0) / LARGEST, SMALLEST)
    for start in range(0, width, STRIP):
        columns, numbers = strip_of(x, start, width, STRIP, GATED)
        grouped = tl.reshape(numbers, [GROUPS, STRIP // GROUPS])
        if GROUPED:
            scale = tl.maximum(tl.max(tl.abs(grouped), 1) / LARGEST, SMALLEST)
            group = start // (STRIP // GROUPS) + tl.arange(0, GROUPS)
            num_groups = width // (STRIP // GROUPS)
            tl.store(scales + row * num_groups + group, scale, mask=group < num_groups)
        scaled = tl.minimum(tl.maximum(grouped / scale[:, None], -LARGEST), LARGEST)
        narrow = tl.reshape(scaled, [STRIP]).to(values.dtype.element_ty)
        tl.store(values + row * width + columns, narrow, mask=columns < width)
    if not GROUPED:
        tl.store(scales + row + tl.arange(0, 1), scale)


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
    """As the op. Raises KernelInputError."""
    rows, width = values.shape
    op, device = "quantize_rows", x.device
    checks.check_tensor(op, "x", x, device, checks.HALVES)
    if added is not None:
        checks.check_tensor(op, "added", added, device, checks.HALVES, whole=True)
    if norm is not None:
        checks.check_tensor(op, "norm.weight", norm.weight, device, checks.HALVES, whole=True)
    if static_scale is not None:
        checks.check_tensor(op, "static_scale", static_scale, device, checks.SINGLES, whole=True)
    if not rows:
        return
    limits = {"LARGEST": FP8_MAX, "SMALLEST": MIN_SCALE}
    static = scales if static_scale is None else static_scale
    if width > WIDEST and norm is None and added is None and group <= STRIP:
        quantize_wide_rows_kernel[(rows,)](
            x, static, values, scales, x.stride(0), width, STRIP=STRIP, GROUPS=STRIP // group if group else 1,
            GROUPED=group > 0, GATED=gated, STATIC=static_scale is not None, **limits, num_warps=16,
        )  # fmt: skip
        return
    padded = launch.next_power_of_2(width)
    quantize_rows_kernel[(rows,)](
        x, values if added is None else added, x if norm is None else norm.weight, static,
        values, scales, x.stride(0), width, norm.eps if norm else 0.0,
        WIDTH=padded, GROUPS=padded // group if group else 1, NUM_GROUPS=scales.shape[1],
        ADDED=added is not None, HAS_NORM=norm is not None, GATED=gated, STATIC=static_scale is not None,
        **limits, num_warps=launch.warps_of(width),
    )  # fmt: skip

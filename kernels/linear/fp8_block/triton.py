"""Triton on Hopper and later: a tile of the result a program, one scaled partial sum every 128 columns.

Tiles come by asynchronous copies of 16 bytes, four in flight, not by TMA: a turn's instructions issue in 0.72 of
the time that the tensor cores take (REPORT.md), most of them the scaled sums that TMA would not save, and a
descriptor has to be made on the host for every activation.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ... import checks
from . import BLOCK

STAGES = 4  # tiles in flight: 128 kB of shared memory at 128 x 128


@triton.jit
def block_product_kernel(
    x, x_scales, weight, w_scales, out, rows, n, k, out_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (row tiles, column tiles): neighbouring programs share a tile of the weight. k is a multiple of
    BLOCK, and COLUMNS divides it, so that a tile of columns has one weight scale.
    """
    row_tile, column_tile = tl.program_id(0), tl.program_id(1)
    at = row_tile * ROWS + tl.arange(0, ROWS)
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, BLOCK)
    blocks = k // BLOCK
    # Rows and columns past the end read the last one: their results are never stored.
    row = tl.minimum(at, rows - 1).to(tl.int64)
    x_at = x + row[:, None] * k + depth[None, :]
    w_at = weight + tl.minimum(columns, n - 1).to(tl.int64)[None, :] * k + depth[:, None]
    x_scale_at = x_scales + row * blocks
    w_scale_at = w_scales + (column_tile * COLUMNS // BLOCK).to(tl.int64) * blocks
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(blocks):
        part = tl.dot(tl.load(x_at), tl.load(w_at))
        total += part * (tl.load(x_scale_at + block) * tl.load(w_scale_at + block))[:, None]
        x_at += BLOCK
        w_at += BLOCK
    mask = (at < rows)[:, None] & (columns < n)[None, :]
    where = out + at.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=mask)


def block_product(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, w_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """As the reference. Raises KernelInputError."""
    (rows, k), n = x.shape, weight.shape[0]
    op, device = "fp8_block_product", x.device
    checks.check_tensor(op, "x", x, device, checks.NARROW, whole=True)
    checks.check_tensor(op, "x_scales", x_scales, device, checks.SINGLES, whole=True)
    checks.check_tensor(op, "weight", weight, device, checks.NARROW, whole=True)
    checks.check_tensor(op, "w_scales", w_scales, device, checks.SINGLES, whole=True)
    checks.check_tensor(op, "out", out, device, checks.HALVES)
    if not rows:
        return
    tile = tile_rows(rows)
    columns = 128 if triton.cdiv(rows, tile) * triton.cdiv(n, 128) >= 128 else 64
    block_product_kernel[(triton.cdiv(rows, tile), triton.cdiv(n, columns))](
        x, x_scales, weight, w_scales, out, rows, n, k, out.stride(0),
        ROWS=tile, COLUMNS=columns, BLOCK=BLOCK, num_warps=8 if tile == 128 else 4, num_stages=STAGES,
    )  # fmt: skip


def tile_rows(rows: int) -> int:
    """64 rows fill Hopper's warpgroup instructions; fewer tokens take the same tile, as weights bound them."""
    return 128 if rows > 128 else 64

"""Triton on Ada, Hopper and later: a tile of the result a program, or a share of one.

A decode step reads every weight once, and time is bytes: what counts is that all SMs ask for them, and that the
inputs, which every program reads again, weigh little beside them. So few rows take wide tiles (64 x 256: a
quarter more than the weight itself passes from the second-level cache), and where tiles are fewer than SMs the
depth is cut into shares. Each share adds its sums to scratch; the program that finds itself the last of a tile
joins them, in the order of their depth: the same bits whichever that is.

Tiles come by asynchronous copies of 16 bytes, four in flight, not by TMA: a turn's instructions issue in less
than the time that memory or the tensor cores take (REPORT.md), most of them scaled sums that TMA would not save,
and a descriptor has to be made on the host for every activation.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ... import checks, launch
from ...fp8 import BLOCK
from ...memory import DeviceScratch

STAGES = 4  # tiles in flight: 160 kB of shared memory at 64 x 256
LEAST_BLOCKS = 8  # of 128 columns in a share: less does not pay for joining
LARGEST_TILE = 128 * 128
PARTIAL, ARRIVED = DeviceScratch(), DeviceScratch(torch.int32)


@triton.jit(do_not_specialize=["rows"])
def fp8_product_kernel(
    x, x_scales, weight, w_scales, out, partial, arrived, rows, n, k, out_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, BLOCKED: tl.constexpr,
):  # fmt: skip
    """Grid (row tiles, column tiles, shares): neighbouring programs share a tile of the weight. k is a multiple
    of BLOCK. partial, float32 [tiles, shares, ROWS, COLUMNS], and arrived, int32 [tiles], are read where there
    are several shares; arrived holds zeros before and after.
    """
    row_tile, column_tile = tl.program_id(0), tl.program_id(1)
    share, shares = tl.program_id(2), tl.num_programs(2)
    at = row_tile * ROWS + tl.arange(0, ROWS)
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, BLOCK)
    live = at < rows
    blocks = k // BLOCK
    each = tl.cdiv(blocks, shares)
    begin, end = share * each, tl.minimum(share * each + each, blocks)
    # Columns past the end read the last one: their results are never stored.
    row, column = at.to(tl.int64), tl.minimum(columns, n - 1).to(tl.int64)
    x_at = x + row[:, None] * k + depth[None, :] + begin * BLOCK
    w_at = weight + column[None, :] * k + depth[:, None] + begin * BLOCK
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(begin, end):
        left, right = tl.load(x_at, mask=live[:, None], other=0.0), tl.load(w_at)
        if BLOCKED:
            x_scale = tl.load(x_scales + row * blocks + block, mask=live, other=0.0)
            # A tile is one or two blocks wide.
            first = column_tile * (COLUMNS // BLOCK) if COLUMNS >= BLOCK else column_tile * COLUMNS // BLOCK
            w_scale = tl.load(w_scales + first.to(tl.int64) * blocks + block)
            if COLUMNS > BLOCK:
                second = tl.minimum(first + 1, (n - 1) // BLOCK).to(tl.int64)
                other = tl.load(w_scales + second * blocks + block)
                scale = tl.where((tl.arange(0, COLUMNS) < BLOCK)[None, :], w_scale, other) * x_scale[:, None]
                total += tl.dot(left, right) * scale
            else:
                total += tl.dot(left, right) * (x_scale * w_scale)[:, None]
        else:
            # Not summed by the product: Hopper's tensor cores keep a long sum of FP8 products in some 14 bits.
            total += tl.dot(left, right)
        x_at += BLOCK
        w_at += BLOCK
    if not BLOCKED:
        x_scale = tl.load(x_scales + row, mask=live, other=0.0)
        total *= x_scale[:, None] * tl.load(w_scales + column)[None, :]
    last = True
    if shares > 1:
        tile = row_tile * tl.num_programs(1) + column_tile
        total, last = join(total, partial, arrived + tile, tile, share, shares, live, ROWS, COLUMNS)
    if last:
        where = out + row[:, None] * out_stride + columns[None, :]
        tl.store(where, total.to(out.dtype.element_ty), mask=live[:, None] & (columns < n)[None, :])


@triton.jit
def join(total, partial, arrived, tile, share, shares, live, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(sum of all shares, True) in the last program of a tile to come here, (its own, False) in the others."""
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    first = partial + tile.to(tl.int64) * shares * (ROWS * COLUMNS)
    tl.store(first + share * (ROWS * COLUMNS) + place, total, mask=live[:, None])
    tl.debug_barrier()  # all threads have stored before one of them says so
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == shares - 1
    if last:
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for other in range(shares):
            at = first + other * (ROWS * COLUMNS) + place
            total += tl.load(at, mask=live[:, None], other=0.0, cache_modifier=".cg")
        tl.store(arrived, 0)
    return total, last


def fp8_product(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, w_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """As the reference; K is a multiple of 128. Raises KernelInputError."""
    (rows, k), n = x.shape, weight.shape[0]
    op, device, blocked = "fp8_product", x.device, w_scales.ndim == 2
    checks.check_tensor(op, "x", x, device, checks.NARROW, whole=True)
    checks.check_tensor(op, "x_scales", x_scales, device, checks.SINGLES, whole=True)
    checks.check_tensor(op, "weight", weight, device, checks.NARROW, whole=True)
    checks.check_tensor(op, "w_scales", w_scales, device, checks.SINGLES, whole=True)
    checks.check_tensor(op, "out", out, device, checks.HALVES)
    checks.check_size(op, "weight", weight, (n, k))
    checks.check_size(op, "x_scales", x_scales, (rows, k // BLOCK if blocked else 1))
    checks.check_size(op, "w_scales", w_scales, (launch.cdiv(n, BLOCK), k // BLOCK) if blocked else (n,))
    checks.check_size(op, "out", out, (rows, n))
    if k % BLOCK:
        raise checks.KernelInputError(op, "x", f"has rows of {k}, not a multiple of {BLOCK}")
    if not rows:
        return
    sms = launch.num_sms(device)
    tile, columns, warps = plan(launch.capability(device), rows, n)
    tiles = launch.cdiv(rows, tile), launch.cdiv(n, columns)
    shares = shares_of(tiles[0] * tiles[1], k // BLOCK, sms)
    # Room for the sums of every SM's program, and a counter for its tile: enough for any product.
    partial, arrived = PARTIAL(device, sms * LARGEST_TILE), ARRIVED(device, sms)
    fp8_product_kernel[(*tiles, shares)](
        x, x_scales, weight, w_scales, out, partial, arrived, rows, n, k, out.stride(0),
        ROWS=tile, COLUMNS=columns, BLOCK=BLOCK, BLOCKED=blocked, num_warps=warps, num_stages=STAGES,
    )  # fmt: skip


def plan(capability: tuple[int, int], rows: int, n: int) -> tuple[int, int, int]:
    """(rows, columns) of a tile and its warps: the largest that spills no registers."""
    if not launch.has_warpgroups(capability):
        return 64, 64, 4
    if rows <= 64:
        return (64, 256, 8) if n >= 2048 else (64, 64, 4)
    return 128, 128, 8


def shares_of(tiles: int, blocks: int, sms: int) -> int:
    """Into how many the depth of every tile is cut, so that as many programs as SMs run, and no more."""
    return max(1, min(sms // tiles, blocks // LEAST_BLOCKS))

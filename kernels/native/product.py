"""The product of a step's activations with a packed weight: the one loop under every CPU linear layer.

A weight [N, K] is packed into blocks of WIDTH rows, each block [K, WIDTH]. Activations are laid out as
[shares of K, T, ROW], so that a tile's rows stand a fixed distance apart.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numba import carray

from ..memory import WEIGHTS, Scratch
from .jit import jit, worker
from .mathematics import silu, sum_of_squares
from .team import Job, is_ready, ready, take, team
from .vector import DEPTH, HEIGHT, ROW, WIDTH, fetch, pointer, tile

STORE, ADD, GATE = 0, 1, 2  # what becomes of a product: kept, added to out, or silu(block) * next block
SHARED_ROWS = 16  # more rows are laid out once, by all threads; fewer, by each for itself
LAID_ROWS = 8  # rows laid out as one task
NEAR = 4096  # bytes that a single panel fetches ahead: a whole number of a block's rows
LINE = 64  # bytes of a cache line
MANY_PANELS = 8
HELD_BYTES = 640 << 10  # of weights, beside a panel of x in a second-level cache


def pack(*weights: torch.Tensor) -> torch.Tensor:
    """float32 [ceil(N / WIDTH), weights, K, WIDTH]: blocks of rows of each weight [N, K], the last filled up with zeros."""
    rows, columns = weights[0].shape
    blocks = -(-rows // WIDTH)
    packed = WEIGHTS.empty(blocks, len(weights), columns, WIDTH)
    for which, weight in enumerate(weights):
        for block in range(blocks):
            part = weight[block * WIDTH : (block + 1) * WIDTH]
            packed[block, which, :, : len(part)] = part.t()
            packed[block, which, :, len(part) :] = 0.0
    return packed


@jit()
def _depth(k: int) -> int:
    """Floats of k handled at a time: even shares of at most DEPTH."""
    shares = -(-k // DEPTH)
    return -(-k // shares)


@jit()
def _lay_out(x: int, norm: int, eps: float, first: int, last: int, rows: int, k: int, laid: int) -> None:
    """Rows first:last of x, normalised if `norm` is not 0, into `laid` [chunks, rows, ROW]."""
    for row in range(first, last):
        source = carray(pointer(x + row * k * 4), (k,), np.float32)
        factor = np.float32(1.0)
        if norm != 0:
            mean = sum_of_squares(source) / np.float32(k)
            factor = np.float32(1.0) / np.float32(math.sqrt(mean + np.float32(eps)))
        depth = _depth(k)
        for start in range(0, k, depth):
            count = min(depth, k - start)
            part = carray(pointer(x + (row * k + start) * 4), (count,), np.float32)
            target = carray(pointer(laid + (start // depth * rows + row) * ROW * 4), (count,), np.float32)
            if norm != 0:
                weight = carray(pointer(norm + start * 4), (count,), np.float32)
                for i in range(count):
                    target[i] = part[i] * factor * weight[i]
            else:
                for i in range(count):
                    target[i] = part[i]


@jit()
def _block(
    laid: int, first: int, height: int, rows: int, k: int, weight: int, sums: int,
    early: int, step: int, also: int, also_step: int, also_share: int,
) -> None:  # fmt: skip
    """sums[height, WIDTH] of one block of weights with rows first:first+height.

    Fetches meanwhile from `early`, and from `also`, which moves on by `also_share` bytes with each share of k.
    """
    depth = _depth(k)
    for start in range(0, k, depth):
        share = start // depth
        x = laid + (share * rows + first) * ROW * 4
        w = weight + start * WIDTH * 4
        fetched, chain = also + share * also_share, 1 if start > 0 else 0
        count = min(depth, k - start)
        tile(height, x, w, WIDTH, count, sums, chain, early + start * step, step, fetched, also_step)


@jit()
def _streamed_block(laid: int, rows: int, k: int, weight: int, sums: int, end: int, after: int) -> None:
    """sums[rows, WIDTH] of one block of weights with all rows of x, as fast as memory gives the weights.

    What lies NEAR bytes ahead is fetched meanwhile; `end` is where this worker's task ends, and `after` where its
    next one begins.
    """
    depth, row_bytes = _depth(k), WIDTH * 4
    start = 0
    while start < k:
        share, inside = start // depth, start % depth
        count, early = min(depth - inside, k - start), weight + start * row_bytes + NEAR
        if early < end:
            count = min(count, (end - early) // row_bytes)
        else:
            early += after - end
        x, w = laid + (share * rows * ROW + inside) * 4, weight + start * row_bytes
        tile(rows, x, w, WIDTH, count, sums, 1 if start > 0 else 0, early, row_bytes, early + LINE, row_bytes)
        start += count


@jit()
def _finish(sums: int, others: int, height: int, count: int, bias: int, out: int, n: int, mode: int) -> None:
    """Writes count columns of each of a tile's rows to out, rows n floats apart."""
    for row in range(height):
        value = carray(pointer(sums + row * ROW * 4), (count,), np.float32)
        target = carray(pointer(out + row * n * 4), (count,), np.float32)
        if bias != 0:
            offset = carray(pointer(bias), (count,), np.float32)
            for i in range(count):
                value[i] += offset[i]
        if mode == GATE:
            other = carray(pointer(others + row * ROW * 4), (count,), np.float32)
            for i in range(count):
                target[i] = silu(value[i]) * other[i]
        elif mode == ADD:
            for i in range(count):
                target[i] += value[i]
        else:
            for i in range(count):
                target[i] = value[i]


@jit()
def _blocks(
    begin: int,
    end: int,
    laid: int,
    rows: int,
    k: int,
    weight: int,
    bias: int,
    out: int,
    n: int,
    mode: int,
    sums: int,
    skip: int,
) -> None:
    """Blocks begin:end of out, all rows in several panels; with GATE each is a pair of blocks of weights.

    The caller's next blocks are thought to begin `skip` blocks from its last ones.
    """
    panels = -(-rows // HEIGHT)
    base, longer = rows // panels, rows % panels
    size = k * WIDTH * 4
    each = (2 if mode == GATE else 1) * size
    # Many panels pass over the few blocks that the cache holds, else all panels over block after block.
    together = max(1, HELD_BYTES // each) if panels >= MANY_PANELS else 1
    step = WIDTH * 4 // panels  # they fetch the blocks to come between them
    others = sums + HEIGHT * ROW * 4
    depth, passes = _depth(k), 2 if mode == GATE else 1
    for group in range(begin, end, together):
        after = min(group + together, end)
        following = each * (after - group if after < end else skip)
        for panel in range(panels):
            first = panel * base + min(panel, longer)
            height = base + (1 if panel < longer else 0)
            # Beside weights, the panel to come is fetched.
            also = laid + (first + height if panel + 1 < panels else 0) * ROW * 4
            also_step, also_share = 0, rows * ROW * 4
            if panels >= MANY_PANELS:
                also_step = HEIGHT * ROW * 4 // ((after - group) * passes * depth)
            for block in range(group, after):
                column, gate = block * WIDTH, weight + block * each
                early = gate + following + panel * k * step
                _block(laid, first, height, rows, k, gate, sums, early, step, also, also_step, also_share)
                also += depth * also_step
                if mode == GATE:
                    up, early = gate + size, early + size
                    _block(laid, first, height, rows, k, up, others, early, step, also, also_step, also_share)
                    also += depth * also_step
                target = out + (first * n + column) * 4
                shift = bias + column * 4 if bias != 0 else 0
                _finish(sums, others, height, min(WIDTH, n - column), shift, target, n, mode)


@jit()
def _streamed(
    begin: int, end: int, then: int, laid: int, rows: int, k: int, weight: int, bias: int, out: int, n: int,
    mode: int, sums: int,
) -> None:  # fmt: skip
    """The same with rows that fit in one panel; the caller's next task begins with block `then`."""
    size = k * WIDTH * 4
    each = (2 if mode == GATE else 1) * size
    stop, after, others = weight + end * each, weight + then * each, sums + HEIGHT * ROW * 4
    for block in range(begin, end):
        column, gate = block * WIDTH, weight + block * each
        _streamed_block(laid, rows, k, gate, sums, stop, after)
        if mode == GATE:
            _streamed_block(laid, rows, k, gate + size, others, stop, after)
        shift = bias + column * 4 if bias != 0 else 0
        _finish(sums, others, rows, min(WIDTH, n - column), shift, out + column * 4, n, mode)


@jit()
def _fetch_until_ready(gate: int, begin: int, end: int) -> None:
    """Fetches memory that no work writes until the work before has ended."""
    while not is_ready(gate) and begin < end:
        fetch(begin, 8 * LINE)
        begin += 8 * LINE
    ready(gate)


@worker
def _lay_out_work(control: int, arguments: int) -> None:
    """Tasks are LAID_ROWS rows of x each."""
    given = carray(pointer(arguments), (6,), np.int64)
    x, rows, k, norm, laid = given[0], given[1], given[2], given[3], given[5]
    eps = carray(pointer(arguments + 4 * 8), (1,), np.float64)[0]
    first = take(control, LAID_ROWS)
    if first < rows:
        ready(control)
    while first < rows:
        _lay_out(x, norm, eps, first, min(first + LAID_ROWS, rows), rows, k, laid)
        first = take(control, LAID_ROWS)


@worker
def _product_work(control: int, arguments: int) -> None:
    """Tasks are `grain` blocks of the weight each; few rows are laid out by each worker for itself."""
    given = carray(pointer(arguments), (13,), np.int64)
    x, rows, k, norm, laid = given[0], given[1], given[2], given[3], given[5]
    weight, bias, out, n, mode, grain = given[6], given[7], given[8], given[9], given[10], given[11]
    eps = carray(pointer(arguments + 4 * 8), (1,), np.float64)[0]
    skip, blocks = given[12], -(-n // WIDTH)
    begin = take(control, grain)
    if begin >= blocks:
        return
    each = (2 if mode == GATE else 1) * k * WIDTH * 4
    _fetch_until_ready(control, weight + begin * each, weight + (begin + grain) * each)
    sums = np.empty(2 * HEIGHT * ROW, dtype=np.float32)
    own = np.empty(1 if rows > SHARED_ROWS else (k // DEPTH + 1) * rows * ROW, dtype=np.float32)
    if rows <= SHARED_ROWS:
        laid = own.ctypes.data
        _lay_out(x, norm, eps, 0, rows, rows, k, laid)
    while begin < blocks:
        end = min(begin + grain, blocks)
        if rows > HEIGHT:
            _blocks(begin, end, laid, rows, k, weight, bias, out, n, mode, sums.ctypes.data, skip)
            begin = take(control, grain)
        else:
            following = take(control, grain)  # known so early that its first weights are here when it begins
            then = following if following < blocks else begin
            _streamed(begin, end, then, laid, rows, k, weight, bias, out, n, mode, sums.ctypes.data)
            begin = following
    own[0] = 0.0  # Numba frees an array behind its last use, and its address is none


_lay_out_job, _product_job = Job(_lay_out_work, "qqqqdq"), Job(_product_work, "qqqqdqqqqqqqq")


_SCRATCH = Scratch()  # of activations laid out for all members


@functools.cache
def _grain(blocks: int, rows: int, workers: int) -> tuple[int, int]:
    """Blocks of one task, and how far its worker's next task is likely to be: the shares come out even."""
    most = min(8, max(1, blocks // (workers * 3))) if rows > HEIGHT else 1
    grain = min(range(1, most + 1), key=lambda g: (-(-blocks // (g * workers)) * g, -g))
    return grain, 1 + (workers - 1) * grain


def product(
    x: torch.Tensor, norm: int, eps: float, weight: int, bias: int, out: torch.Tensor, mode: int
) -> None:
    """out [rows, n] from x [rows, k] and a packed weight; norm, weight and bias are addresses, 0 where absent.

    Blocks are handed out as workers get to them, so a core that others slow down does not hold up the rest.
    """
    (rows, k), n = x.shape, out.shape[1]
    if rows == 0:
        return
    source, laid = x.data_ptr(), 0
    if rows > SHARED_ROWS:
        laid = _SCRATCH.address(-(-k // DEPTH) * rows * ROW)
        _lay_out_job(source, rows, k, norm, eps, laid)
    grain, skip = _grain(-(-n // WIDTH), rows, team().size)
    _product_job(source, rows, k, norm, eps, laid, weight, bias, out.data_ptr(), n, mode, grain, skip)

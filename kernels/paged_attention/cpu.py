"""float32 on a CPU: tiles of keys at fixed positions, online softmax (arXiv 1805.02867), heads of a group together.

A query's terms are added in the same order whatever the batch, the chunk or the tile of queries it
came with: tiles of TILE keys begin at multiples of TILE, and a hidden key adds exactly nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray

from ..native.jit import jit, worker
from ..native.mathematics import exp
from ..native.softmax import exponentials
from ..native.team import Job, ready, take
from ..native.vector import (
    FOLDED,
    HEIGHT,
    LANES,
    ROW,
    WIDTH,
    fetch,
    largest,
    pointer,
    tile,
    transpose,
)
from . import Sequences
from .reference import paged_attention as reference

TILE = FOLDED  # keys
QUERY_ROWS = 56  # rows (queries x heads of a group) that share the keys of a tile
MAX_HEAD_DIM = 256
_LEAST = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@jit()
def _load_keys(
    source: int,
    block_size: int,
    dim: int,
    head_step: int,
    table: int,
    begin: int,
    end: int,
    keys: int,
    apart: int,
) -> None:
    """Keys begin:end of one head, transposed to [TILE / WIDTH, dim, WIDTH]; what is past `end` is left undefined.

    Meanwhile their values, `apart` bytes away, start on their way from memory.
    """
    blocks = carray(pointer(table), (end // block_size + 1,), np.int32)
    eights = block_size % 8 == 0 and dim % LANES == 0
    key, stop, index, offset = begin, min(end, begin + TILE), begin // block_size, begin % block_size
    place = source + (np.int64(blocks[index]) * head_step + offset * dim) * 4
    while key < stop:
        at = key - begin
        target = keys + (at // WIDTH * dim * WIDTH + at % WIDTH) * 4
        if eights:
            for i in range(0, dim, LANES):
                fetch(place + apart + 8 * i * 4, 8 * LANES * 4)
                transpose(place + i * 4, dim, target + i * WIDTH * 4, WIDTH)
        else:
            column = carray(pointer(target), (dim * WIDTH,), np.float32)
            values = carray(pointer(place), (dim,), np.float32)
            for i in range(dim):
                column[i * WIDTH] = values[i]
        run = 8 if eights else 1
        key += run
        offset += run
        place += run * dim * 4
        if offset == block_size and key < stop:
            index += 1
            offset = 0
            place = source + np.int64(blocks[index]) * head_step * 4


@jit()
def _load_values(
    source: int,
    block_size: int,
    dim: int,
    padded: int,
    head_step: int,
    table: int,
    begin: int,
    end: int,
    values: int,
) -> None:
    """Values begin:end of one head to [TILE, padded]."""
    blocks = carray(pointer(table), (end // block_size + 1,), np.int32)
    key, stop = begin, min(end, begin + TILE)
    while key < stop:
        offset = key % block_size
        count = min(block_size - offset, stop - key)
        place = source + (np.int64(blocks[key // block_size]) * head_step + offset * dim) * 4
        target = values + (key - begin) * padded * 4
        run = 1 if padded > dim else count  # keys that lie side by side in both
        for _ in range(0, count, run):
            taken = carray(pointer(place), (run * dim,), np.float32)
            kept = carray(pointer(target), (run * dim,), np.float32)
            for i in range(run * dim):
                kept[i] = taken[i]
            place += run * dim * 4
            target += run * padded * 4
        key += count


@jit()
def _weigh(scores: int, low: int, high: int, scale: np.float32, state: int, output: int, dim: int) -> None:
    """Scores of one row and tile become weights; keys outside low:high get none. state: largest, sum."""
    row = carray(pointer(scores), (TILE,), np.float32)
    if low >= high:
        for i in range(TILE):
            row[i] = _ZERO
        return
    seen = carray(pointer(state), (2,), np.float32)
    for i in range(low):
        row[i] = _LEAST
    for i in range(high, TILE):
        row[i] = _LEAST
    peak = max(seen[0], largest(scores) * scale)
    added = exponentials(scores, scale, peak)
    if peak != seen[0]:  # what was added up so far was measured against a smaller one
        shrink = exp(seen[0] - peak)
        kept = carray(pointer(output), (dim,), np.float32)
        for i in range(dim):
            kept[i] *= shrink
        seen[0], seen[1] = peak, seen[1] * shrink
    seen[1] += added


@jit()
def _block_address(base: int, head_step: int, table: int, index: int, count: int) -> int:
    """Where block `index` of a table of `count` blocks lies; 0 past its end."""
    if index >= count:
        return 0
    return base + np.int64(carray(pointer(table), (count,), np.int32)[index]) * head_step * 4


@jit()
def _add_values(
    rows: int, scores: int, source: int, count: int, dim: int, output: int, block_size: int, head_step: int,
    table: int, ahead: int, next_table: int, next_blocks: int,
) -> None:  # fmt: skip
    """Adds weighted values of the table's first `count` keys where they lie.

    Meanwhile the blocks of the next table, `ahead` in memory, start on their way.
    """
    blocks = -(-count // block_size)
    for index in range(blocks):
        values = _block_address(source, head_step, table, index, blocks)
        early = _block_address(ahead, head_step, next_table, index, next_blocks)
        keys = min(block_size, count - index * block_size)
        x, step = scores + index * block_size * 4, WIDTH * 4 if early != 0 else 0
        for part in range(0, dim, WIDTH):
            fetched = early + part * block_size * 4 if early != 0 else values
            tile(
                rows,
                x,
                values + part * 4,
                dim,
                keys,
                output + part * 4,
                1,
                fetched,
                step,
                fetched + step // 2,
                step,
            )


@jit()
def _attend(
    q: int, q_step: int, out: int, out_step: int, group: int, dim: int, k: int, v: int, block_size: int,
    head_step: int, table: int, queries: int, position: int, window: int, scale: np.float32, scratch: int,
    next_shift: int, next_table: int, next_blocks: int,
) -> None:  # fmt: skip
    """One head of the cache for `queries` queries at position, position + 1, ...; group rows each.

    The caller's next head lies `next_shift` bytes from this one; the tile it begins with is fetched early.
    """
    rows, padded = queries * group, -(-dim // WIDTH) * WIDTH
    laid, scores = scratch, scratch + rows * ROW * 4
    output, state = scores + rows * ROW * 4, scores + 2 * rows * ROW * 4
    keys = state + rows * 2 * 4
    values = keys + TILE * dim * 4
    for row in range(rows):
        source = carray(pointer(q + (row // group * q_step + row % group * dim) * 4), (dim,), np.float32)
        target = carray(pointer(laid + row * ROW * 4), (dim,), np.float32)
        sums = carray(pointer(output + row * ROW * 4), (padded,), np.float32)
        seen = carray(pointer(state + row * 8), (2,), np.float32)
        for i in range(dim):
            target[i] = source[i]
        for i in range(padded):
            sums[i] = _ZERO
        seen[0], seen[1] = _LEAST, _ZERO
    context = position + queries
    begin = max(0, position - window + 1) // TILE * TILE if window > 0 else 0
    panels = -(-rows // HEIGHT)
    whole = TILE % block_size == 0 and WIDTH % min(block_size, WIDTH) == 0 and dim % WIDTH == 0
    while begin < context:
        _load_keys(k, block_size, dim, head_step, table, begin, context, keys, v - k)
        direct = whole and panels == 1
        if not direct:
            _load_values(v, block_size, dim, padded, head_step, table, begin, context, values)
        count = min(TILE, context - begin)
        here, per_tile = table + begin // block_size * 4, TILE // block_size
        if begin + TILE < context:
            shift, ahead = 0, here + per_tile * 4
            blocks = min(per_tile, -(-(context - begin - TILE) // block_size))
        else:
            shift, ahead, blocks = next_shift, next_table, min(per_tile, next_blocks)
        if not whole:
            blocks = 0
        for panel in range(panels):
            first = panel * rows // panels
            height = (panel + 1) * rows // panels - first
            place = first * ROW * 4
            for part in range(0, count, WIDTH):
                w = keys + part * dim * 4
                tile(height, laid + place, w, WIDTH, dim, scores + place + part * 4, 0, keys, 0, keys, 0)
            for row in range(first, first + height):
                at = position + row // group
                low = max(0, at - window + 1 - begin) if window > 0 else 0
                high = min(count, at + 1 - begin)
                row_place = row * ROW * 4
                _weigh(scores + row_place, low, high, scale, state + row * 8, output + row_place, dim)
            if direct:
                _add_values(
                    rows, scores, v, count, dim, output, block_size, head_step, here, k + shift, ahead, blocks
                )
                continue
            for part in range(0, padded, WIDTH):
                w, sums_place = values + part * 4, output + place + part * 4
                tile(height, scores + place, w, padded, count, sums_place, 1, values, 0, values, 0)
        begin += TILE
    for row in range(rows):
        sums = carray(pointer(output + row * ROW * 4), (dim,), np.float32)
        target = carray(pointer(out + (row // group * out_step + row % group * dim) * 4), (dim,), np.float32)
        seen = carray(pointer(state + row * 8), (2,), np.float32)
        share = _ONE / seen[1]
        for i in range(dim):
            target[i] = sums[i] * share


@jit()
def _sequence_of(
    task: int, i: int, before: int, start: np.ndarray, n: int, per_tile: int, kv_heads: int
) -> tuple[int, int]:
    """The sequence that a task belongs to, n if to none, and the number of tasks before its first; from i on."""
    while i < n:
        here = -(-np.int64(start[i + 1] - start[i]) // per_tile) * kv_heads
        if task < before + here:
            break
        i += 1
        before += here
    return i, before


@worker
def _work(control: int, arguments: int) -> None:
    """Tasks are a tile of a sequence's queries with one head of the cache each."""
    given = carray(pointer(arguments), (17,), np.int64)
    q, q_step, out, group, kv_heads, dim = given[0], given[1], given[2], given[3], given[4], given[5]
    k, v, block_size, tables, table_step = given[6], given[7], given[8], given[9], given[10]
    n, window, longest = given[13], given[14], given[15]
    scale = np.float32(carray(pointer(arguments + 16 * 8), (1,), np.float64)[0])
    start = carray(pointer(given[11]), (n + 1,), np.int32)
    context = carray(pointer(given[12]), (n,), np.int32)
    per_tile = max(1, QUERY_ROWS // group)
    rows, head_step, wide = min(per_tile, longest) * group, block_size * dim, kv_heads * group * dim
    task = take(control, 1)
    i, before = _sequence_of(task, 0, np.int64(0), start, n, per_tile, kv_heads)
    if i == n:
        return
    ready(control)
    scratch = np.empty(rows * (3 * ROW + 2) + TILE * (dim + -(-dim // WIDTH) * WIDTH), dtype=np.float32)
    while i < n:
        first = np.int64(start[i]) + (task - before) // kv_heads * per_tile
        head, end = (task - before) % kv_heads, np.int64(start[i + 1])
        column, shift = head * group * dim, head * head_step * 4
        following = take(control, 1)  # known so early that its first keys are here when it begins
        then, tasks = _sequence_of(following, i, before, start, n, per_tile, kv_heads)
        reach = -(-np.int64(context[then]) // block_size) if then < n and window == 0 else 0
        _attend(
            q + (first * q_step + column) * 4, q_step, out + (first * wide + column) * 4, wide, group, dim,
            k + shift, v + shift, block_size, kv_heads * head_step, tables + i * table_step * 4,
            min(per_tile, end - first), np.int64(context[i]) - (end - first), window, scale,
            scratch.ctypes.data, ((following - tasks) % kv_heads - head) * head_step * 4,
            tables + then * table_step * 4, reach,
        )  # fmt: skip
        task, i, before = following, then, tasks


_job = Job(_work, "q" * 16 + "d")


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    sequences: Sequences,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    _, kv_heads, block_size, dim = k_cache.shape
    n = sequences.context_lens.shape[0]
    if n == 0:
        return
    if dim % 8 or dim > MAX_HEAD_DIM or k_cache.dtype != torch.float32:
        reference(q, k_cache, v_cache, sequences, scale, window, out)
        return
    tables = sequences.block_tables
    _job(
        q.data_ptr(), q.stride(0), out.data_ptr(), q.shape[1] // (kv_heads * dim), kv_heads, dim,
        k_cache.data_ptr(), v_cache.data_ptr(), block_size, tables.data_ptr(), tables.stride(0),
        sequences.query_starts.data_ptr(), sequences.context_lens.data_ptr(), n, window or 0,
        sequences.max_query_len, scale,
    )  # fmt: skip

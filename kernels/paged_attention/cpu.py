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
from ..native.team import Job, take
from ..native.vector import (
    FOLDED,
    HEIGHT,
    LANES,
    ROW,
    WIDTH,
    fma,
    largest,
    pointer,
    prefetch,
    tile,
    total,
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
    to_values: int,
    block_size: int,
    dim: int,
    head_step: int,
    table: int,
    begin: int,
    end: int,
    keys: int,
) -> None:
    """Keys begin:end of one head, transposed to [TILE / WIDTH, dim, WIDTH]; what is past `end` becomes 0.

    Meanwhile the next tile's keys, and its values `to_values` bytes from them, start on their way from memory.
    """
    blocks = carray(pointer(table), (end // block_size + 1,), np.int32)
    key = begin
    while key < begin + TILE:
        at = key - begin
        target = keys + (at // WIDTH * dim * WIDTH + at % WIDTH) * 4
        offset = key % block_size
        place = (
            source + (np.int64(blocks[key // block_size]) * head_step + offset * dim) * 4 if key < end else 0
        )
        if key + 8 <= end and offset + 8 <= block_size and dim % LANES == 0:
            later = min(key + TILE, end - 1)
            ahead = (
                source + (np.int64(blocks[later // block_size]) * head_step + later % block_size * dim) * 4
            )
            for i in range(0, dim, LANES):
                for line in range(i * 32, (i + LANES) * 32, 64):
                    prefetch(ahead + line)
                    prefetch(ahead + to_values + line)
                transpose(place + i * 4, dim, target + i * WIDTH * 4, WIDTH)
            key += 8
            continue
        column = carray(pointer(target), (dim * WIDTH,), np.float32)
        if key < end:
            values = carray(pointer(place), (dim,), np.float32)
            for i in range(dim):
                column[i * WIDTH] = values[i]
        else:
            for i in range(dim):
                column[i * WIDTH] = _ZERO
        key += 1


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
    for i in range(TILE):
        row[i] = exp(fma(row[i], scale, -peak))
    if peak != seen[0]:  # what was added up so far was measured against a smaller one
        shrink = exp(seen[0] - peak)
        kept = carray(pointer(output), (dim,), np.float32)
        for i in range(dim):
            kept[i] *= shrink
        seen[0], seen[1] = peak, seen[1] * shrink
    seen[1] += total(scores)


@jit()
def _attend(
    q: int, q_step: int, out: int, out_step: int, group: int, dim: int, k: int, v: int, block_size: int,
    head_step: int, table: int, queries: int, position: int, window: int, scale: np.float32, scratch: int,
) -> None:  # fmt: skip
    """One head of the cache for `queries` queries at position, position + 1, ...; group rows each."""
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
    while begin < context:
        _load_keys(k, v - k, block_size, dim, head_step, table, begin, context, keys)
        _load_values(v, block_size, dim, padded, head_step, table, begin, context, values)
        count = min(TILE, context - begin)
        for panel in range(panels):
            first = panel * rows // panels
            height = (panel + 1) * rows // panels - first
            shift = first * ROW * 4
            for part in range(0, count, WIDTH):
                tile(
                    height,
                    laid + shift,
                    keys + part * dim * 4,
                    WIDTH,
                    dim,
                    scores + shift + part * 4,
                    0,
                    keys,
                    0,
                )
            for row in range(first, first + height):
                here = position + row // group
                low = max(0, here - window + 1 - begin) if window > 0 else 0
                high = min(count, here + 1 - begin)
                place = row * ROW * 4
                _weigh(scores + place, low, high, scale, state + row * 8, output + place, dim)
            for part in range(0, padded, WIDTH):
                tile(
                    height,
                    scores + shift,
                    values + part * 4,
                    padded,
                    count,
                    output + shift + part * 4,
                    1,
                    values,
                    0,
                )
        begin += TILE
    for row in range(rows):
        sums = carray(pointer(output + row * ROW * 4), (dim,), np.float32)
        target = carray(pointer(out + (row // group * out_step + row % group * dim) * 4), (dim,), np.float32)
        seen = carray(pointer(state + row * 8), (2,), np.float32)
        share = _ONE / seen[1]
        for i in range(dim):
            target[i] = sums[i] * share


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
    i, before = 0, np.int64(0)  # tasks of the sequences before i
    here = -(-np.int64(start[1] - start[0]) // per_tile) * kv_heads
    scratch = np.empty(rows * (3 * ROW + 2) + TILE * (dim + -(-dim // WIDTH) * WIDTH), dtype=np.float32)
    while True:
        while task >= before + here:
            i += 1
            if i == n:
                return
            before += here
            here = -(-np.int64(start[i + 1] - start[i]) // per_tile) * kv_heads
        first = np.int64(start[i]) + (task - before) // kv_heads * per_tile
        head, end = (task - before) % kv_heads, np.int64(start[i + 1])
        column, shift = head * group * dim, head * head_step * 4
        _attend(
            q + (first * q_step + column) * 4, q_step, out + (first * wide + column) * 4, wide, group, dim,
            k + shift, v + shift, block_size, kv_heads * head_step, tables + i * table_step * 4,
            min(per_tile, end - first), np.int64(context[i]) - (end - first), window, scale,
            scratch.ctypes.data,
        )  # fmt: skip
        task = take(control, 1)


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

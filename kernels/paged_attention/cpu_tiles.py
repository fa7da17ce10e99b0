"""Attention on a CPU, a range of keys at a time: tiles of keys at fixed positions, online softmax (arXiv 1805.02867).

Heads of a group go together: their rows share the keys and values of a tile. Rows of queries, scores and results
lie ROW floats apart.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from ..native.jit import jit
from ..native.mathematics import exp
from ..native.softmax import exponentials
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

TILE = FOLDED  # keys
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
def lay_out(q: int, q_step: int, group: int, dim: int, rows: int, laid: int) -> None:
    """Queries of one head of the cache, `group` rows each, to rows ROW floats apart."""
    for row in range(rows):
        source = carray(pointer(q + (row // group * q_step + row % group * dim) * 4), (dim,), np.float32)
        target = carray(pointer(laid + row * ROW * 4), (dim,), np.float32)
        for i in range(dim):
            target[i] = source[i]


@jit()
def clear(rows: int, dim: int, sums: int, state: int) -> None:
    """Makes weighted sums and states (largest score, sum of weights) of nothing seen yet."""
    padded = -(-dim // WIDTH) * WIDTH
    for row in range(rows):
        held = carray(pointer(sums + row * ROW * 4), (padded,), np.float32)
        seen = carray(pointer(state + row * 8), (2,), np.float32)
        for i in range(padded):
            held[i] = _ZERO
        seen[0], seen[1] = _LEAST, _ZERO


@jit()
def attend(
    rows: int, group: int, dim: int, k: int, v: int, block_size: int, head_step: int, table: int, position: int,
    window: int, scale: np.float32, scratch: int, begin: int, end: int, next_shift: int, next_table: int,
    next_blocks: int,
) -> None:  # fmt: skip
    """Adds keys begin:end of one head of the cache for queries at position, position + 1, ...; group rows each.

    scratch holds queries, scores and weighted sums, `rows` rows each, then states, then room for a tile of keys
    and one of values. The caller's next range begins with the first of `next_blocks` blocks in next_table, its
    head `next_shift` bytes from this one; their keys are fetched early.
    """
    padded = -(-dim // WIDTH) * WIDTH
    laid, scores, output = scratch, scratch + rows * ROW * 4, scratch + 2 * rows * ROW * 4
    state = scratch + 3 * rows * ROW * 4
    keys = state + rows * 2 * 4
    values = keys + TILE * dim * 4
    panels = -(-rows // HEIGHT)
    whole = TILE % block_size == 0 and WIDTH % min(block_size, WIDTH) == 0 and dim % WIDTH == 0
    direct, per_tile = whole and panels == 1, TILE // block_size
    while begin < end:
        _load_keys(k, block_size, dim, head_step, table, begin, end, keys, v - k)
        if not direct:
            _load_values(v, block_size, dim, padded, head_step, table, begin, end, values)
        count, here = min(TILE, end - begin), table + begin // block_size * 4
        if begin + TILE < end:
            shift, ahead = 0, here + per_tile * 4
            blocks = min(per_tile, -(-(end - begin - TILE) // block_size))
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


@jit()
def fold(rows: int, dim: int, sums: int, state: int, step: int, total: int, total_state: int) -> None:
    """Adds a later range's sums, rows `step` floats apart, to the total of those before it, ROW floats apart.

    A row that saw nothing in a range gets the total's very bits, and a total of nothing takes over the range's.
    """
    for row in range(rows):
        added = carray(pointer(sums + row * step * 4), (dim,), np.float32)
        held = carray(pointer(total + row * ROW * 4), (dim,), np.float32)
        seen = carray(pointer(state + row * 8), (2,), np.float32)
        known = carray(pointer(total_state + row * 8), (2,), np.float32)
        if seen[1] == _ZERO:
            continue
        if known[1] == _ZERO:
            for i in range(dim):
                held[i] = added[i]
            known[0], known[1] = seen[0], seen[1]
            continue
        peak = max(known[0], seen[0])
        old, new = exp(known[0] - peak), exp(seen[0] - peak)
        for i in range(dim):
            held[i] = held[i] * old + added[i] * new
        known[0], known[1] = peak, known[1] * old + seen[1] * new


@jit()
def write(
    rows: int, group: int, dim: int, sums: int, state: int, sinks: int, out: int, out_step: int
) -> None:
    """The attended values: weighted sums over the sum of weights, that of the head's sink among them.

    sinks: where those of the group are, 0 where there are none.
    """
    for row in range(rows):
        held = carray(pointer(sums + row * ROW * 4), (dim,), np.float32)
        target = carray(pointer(out + (row // group * out_step + row % group * dim) * 4), (dim,), np.float32)
        seen = carray(pointer(state + row * 8), (2,), np.float32)
        weight = seen[1]
        if sinks != 0:
            weight += exp(carray(pointer(sinks), (group,), np.float32)[row % group] - seen[0])
        share = _ONE / weight
        for i in range(dim):
            target[i] = held[i] * share

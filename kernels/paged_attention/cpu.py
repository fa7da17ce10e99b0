"""float32 on a CPU: one pass over the keys of each query, a segment at a time, the segments folded in their order.

A query's terms are added in the same order whatever the batch, the chunk or the tile of queries it came with,
and however work is shared: tiles and segments of keys begin at multiples of their sizes, a hidden key adds exactly
nothing, and each segment is summed by itself before it is folded into the total of those before it.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray

from ..memory import Scratch
from ..native.jit import jit, worker
from ..native.team import Job, is_last, ready, take, team
from ..native.vector import ROW, WIDTH, pointer
from . import Sequences
from .cpu_tiles import TILE, attend, clear, fold, lay_out, write
from .reference import paged_attention as reference

SEGMENT = 4 * TILE  # keys
QUERY_ROWS = 56  # rows (queries x heads of a group) that share the keys of a tile
MAX_HEAD_DIM = 256
FEW_TASKS = (
    16  # a member; fewer heads of sequences than that are cut into segments, so that the shares come out even
)


@jit()
def _first_key(position: int, window: int) -> int:
    """Where the keys begin that a query at a position looks at; a multiple of TILE."""
    return max(0, position - window + 1) // TILE * TILE if window > 0 else 0


@jit()
def _room(rows: int, dim: int) -> int:
    """Floats of `attend`'s scratch."""
    return rows * (3 * ROW + 2) + TILE * (dim + -(-dim // WIDTH) * WIDTH)


@jit()
def _whole(
    q: int, q_step: int, out: int, out_step: int, sinks: int, group: int, dim: int, k: int, v: int, block_size: int,
    head_step: int, table: int, queries: int, position: int, window: int, scale: np.float32, scratch: int,
    next_shift: int, next_table: int, next_blocks: int,
) -> None:  # fmt: skip
    """One head of the cache for `queries` queries at position, position + 1, ...; group rows each.

    The caller's next head lies `next_shift` bytes from this one, and its keys begin with next_table.
    """
    rows, context = queries * group, position + queries
    sums, state = scratch + 2 * rows * ROW * 4, scratch + 3 * rows * ROW * 4
    total = scratch + _room(rows, dim) * 4
    total_state = total + rows * ROW * 4
    lay_out(q, q_step, group, dim, rows, scratch)
    begin = _first_key(position, window)
    alone = begin // SEGMENT == (context - 1) // SEGMENT
    if not alone:
        clear(rows, dim, total, total_state)
    while begin < context:
        end = min((begin // SEGMENT + 1) * SEGMENT, context)
        shift, then, blocks = next_shift, next_table, next_blocks
        if end < context and SEGMENT % block_size == 0:
            shift, then, blocks = 0, table + end // block_size * 4, -(-(context - end) // block_size)
        clear(rows, dim, sums, state)
        attend(
            rows, group, dim, k, v, block_size, head_step, table, position, window, scale, scratch, begin, end,
            shift, then, blocks,
        )  # fmt: skip
        if not alone:
            fold(rows, dim, sums, state, ROW, total, total_state)
        begin = end
    if alone:
        write(rows, group, dim, sums, state, sinks, out, out_step)
    else:
        write(rows, group, dim, total, total_state, sinks, out, out_step)


@jit()
def _sequence_of(
    task: int, i: int, before: int, start: np.ndarray, n: int, per_tile: int, kv_heads: int
) -> tuple[int, int]:
    """The sequence that a task belongs to, n if to none, and the number of tasks before its first; from i on."""
    while i < n:
        here = int(-(-np.int64(start[i + 1] - start[i]) // per_tile)) * kv_heads
        if task < before + here:
            break
        i += 1
        before += here
    return i, before


@worker
def _work(control: int, arguments: int) -> None:
    """Tasks are a tile of a sequence's queries with one head of the cache each."""
    given = carray(pointer(arguments), (18,), np.int64)
    q, q_step, out, group, kv_heads, dim = given[0], given[1], given[2], given[3], given[4], given[5]
    k, v, block_size, tables, table_step = given[6], given[7], given[8], given[9], given[10]
    n, window, longest, sinks = given[13], given[14], given[15], given[16]
    scale = np.float32(carray(pointer(arguments + 17 * 8), (1,), np.float64)[0])
    start = carray(pointer(given[11]), (n + 1,), np.int32)
    context = carray(pointer(given[12]), (n,), np.int32)
    per_tile = max(1, QUERY_ROWS // group)
    rows, head_step, wide = min(per_tile, longest) * group, block_size * dim, kv_heads * group * dim
    task = take(control, 1)
    i, before = _sequence_of(task, 0, np.int64(0), start, n, per_tile, kv_heads)
    if i == n:
        return
    ready(control)
    scratch = np.empty(_room(rows, dim) + rows * (ROW + 2), dtype=np.float32)
    while i < n:
        first = np.int64(start[i]) + (task - before) // kv_heads * per_tile
        head, end = (task - before) % kv_heads, np.int64(start[i + 1])
        column, shift = head * group * dim, head * head_step * 4
        following = take(control, 1)  # known so early that its first keys are here when it begins
        then, tasks = _sequence_of(following, i, before, start, n, per_tile, kv_heads)
        reach = -(-np.int64(context[then]) // block_size) if then < n and window == 0 else 0
        _whole(
            q + (first * q_step + column) * 4, q_step, out + (first * wide + column) * 4, wide,
            sinks + head * group * 4 if sinks != 0 else 0, group, dim,
            k + shift, v + shift, block_size, kv_heads * head_step, tables + i * table_step * 4,
            min(per_tile, end - first), np.int64(context[i]) - (end - first), window, scale,
            scratch.ctypes.data, ((following - tasks) % kv_heads - head) * head_step * 4,
            tables + then * table_step * 4, reach,
        )  # fmt: skip
        task, i, before = following, then, tasks


@jit()
def _segment_of(
    task: int, i: int, before: int, context: np.ndarray, n: int, window: int, kv_heads: int
) -> tuple[int, int]:
    """The sequence that a task of a segment and head belongs to, n if to none, and the tasks before its first."""
    while i < n:
        first = _first_key(context[i] - 1, window) // SEGMENT
        here = int((np.int64(context[i]) - 1) // SEGMENT + 1 - first) * kv_heads
        if task < before + here:
            break
        i += 1
        before += here
    return i, before


@jit()
def _keep(rows: int, dim: int, sums: int, state: int, kept: int) -> None:
    """A segment's sums, rows side by side, then its states, to where whoever folds them looks."""
    for row in range(rows):
        source = carray(pointer(sums + row * ROW * 4), (dim,), np.float32)
        target = carray(pointer(kept + row * dim * 4), (dim,), np.float32)
        for i in range(dim):
            target[i] = source[i]
    seen, states = (
        carray(pointer(state), (2 * rows,), np.float32),
        carray(pointer(kept + rows * dim * 4), (2 * rows,), np.float32),
    )
    for i in range(2 * rows):
        states[i] = seen[i]


@worker
def _segment_work(control: int, arguments: int) -> None:
    """Decodes alone; tasks are a segment of a sequence's keys with one head of the cache each.

    Whoever ends the last segment of a head folds all of them.
    """
    given = carray(pointer(arguments), (21,), np.int64)
    q, q_step, out, group, kv_heads, dim = given[0], given[1], given[2], given[3], given[4], given[5]
    k, v, block_size, tables, table_step = given[6], given[7], given[8], given[9], given[10]
    n, window, sinks, kept, counters, most = given[13], given[14], given[16], given[17], given[18], given[19]
    scale = np.float32(carray(pointer(arguments + 20 * 8), (1,), np.float64)[0])
    start = carray(pointer(given[11]), (n + 1,), np.int32)
    context = carray(pointer(given[12]), (n,), np.int32)
    head_step, wide, size = block_size * dim, kv_heads * group * dim, group * (dim + 2) * 4
    task = take(control, 1)
    i, before = _segment_of(task, 0, np.int64(0), context, n, window, kv_heads)
    if i == n:
        return
    room = np.empty(_room(group, dim), dtype=np.float32)
    scratch = room.ctypes.data
    sums, state = scratch + 2 * group * ROW * 4, scratch + 3 * group * ROW * 4
    ready(control)
    while i < n:
        position, head = np.int64(context[i]) - 1, (task - before) % kv_heads
        first = _first_key(position, window)
        segment = first // SEGMENT + (task - before) // kv_heads
        last, begin = position // SEGMENT, max(first, segment * SEGMENT)
        row, column, shift = np.int64(start[i]), head * group * dim, head * head_step * 4
        following = take(control, 1)  # known so early that its first keys are here when it begins
        then, tasks = _segment_of(following, i, before, context, n, window, kv_heads)
        ahead, reach = np.int64(0), np.int64(0)
        if then < n and window == 0 and SEGMENT % block_size == 0:
            ahead = (following - tasks) // kv_heads * (SEGMENT // block_size)
            reach = -(-np.int64(context[then]) // block_size) - ahead
        lay_out(q + (row * q_step + column) * 4, q_step, group, dim, group, scratch)
        clear(group, dim, sums, state)
        attend(
            group, group, dim, k + shift, v + shift, block_size, kv_heads * head_step, tables + i * table_step * 4,
            position, window, scale, scratch, begin, min((segment + 1) * SEGMENT, position + 1),
            ((following - tasks) % kv_heads - head) * head_step * 4, tables + (then * table_step + ahead) * 4, reach,
        )  # fmt: skip
        target, here = out + (row * wide + column) * 4, last - first // SEGMENT + 1
        pair, sink = i * kv_heads + head, sinks + head * group * 4 if sinks != 0 else 0
        if here > 1:
            place = kept + pair * most * size
            _keep(group, dim, sums, state, place + (segment - first // SEGMENT) * size)
            if is_last(counters + pair * 8, here):
                clear(group, dim, sums, state)
                for part in range(here):
                    at = place + part * size
                    fold(group, dim, at, at + group * dim * 4, dim, sums, state)
                write(group, group, dim, sums, state, sink, target, wide)
        else:
            write(group, group, dim, sums, state, sink, target, wide)
        task, i, before = following, then, tasks
    room[0] = 0.0  # Numba frees an array behind its last use, and its address is none


_job, _segment_job = Job(_work, "q" * 17 + "d"), Job(_segment_work, "q" * 20 + "d")
_KEPT, _COUNTERS = Scratch(), Scratch()


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    sequences: Sequences,
    scale: float,
    window: int | None,
    out: torch.Tensor,
    *,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    _, kv_heads, block_size, dim = k_cache.shape
    n = sequences.context_lens.shape[0]
    if n == 0:
        return
    if dim % 8 or dim > MAX_HEAD_DIM or k_cache.dtype != torch.float32 or soft_cap is not None:
        reference(q, k_cache, v_cache, sequences, scale, window, out, soft_cap=soft_cap, sinks=sinks)
        return
    if sinks is not None:
        sinks = sinks.float().contiguous()
    tables, group = sequences.block_tables, q.shape[1] // (kv_heads * dim)
    arguments = (
        q.data_ptr(), q.stride(0), out.data_ptr(), group, kv_heads, dim,
        k_cache.data_ptr(), v_cache.data_ptr(), block_size, tables.data_ptr(), tables.stride(0),
        sequences.query_starts.data_ptr(), sequences.context_lens.data_ptr(), n, window or 0,
        sequences.max_query_len, 0 if sinks is None else sinks.data_ptr(),
    )  # fmt: skip
    pairs = n * kv_heads
    if sequences.max_query_len > 1 or pairs >= FEW_TASKS * team().size:
        _job(*arguments, scale)
        return
    most = -(-tables.shape[1] * block_size // SEGMENT) + 1
    kept, counters = _KEPT.address(pairs * most * group * (dim + 2)), _COUNTERS.address(pairs * 2)
    _segment_job(*arguments, kept, counters, most, scale)

"""Triton: one query per sequence over its paged past, the past split so that every SM has work.

A program computes all query heads of one KV head's group at once, padded to 16 rows or more so that the
tensor cores take them, over a share of one sequence's keys. How long a share is follows on the device from
the lengths of the whole batch and the number of SMs: a long sequence among short ones gets many programs,
each short one a single one, and a captured graph serves any lengths. A sequence of one share writes its
result; several leave partial sums that a second kernel merges.

On paper (REPORT.md has the counts): an H100 needs about 2.5 MB in flight to run its memory at full speed
(3.35 TB/s over 0.75 us), 19 kB an SM. A program fetches one tile of K and V ahead while it works on
another; two or more such programs an SM hold more than three times that.
"""

from __future__ import annotations

import triton
import triton.language as tl

MIN_KEYS = 256  # of a share: less does not pay for its merge
STAGES = 5  # the fewest that fetch a tile while another is worked on, as table entries come before what they point to
PROGRAMS_PER_SM = 4  # wanted in all; two or three of them run at a time
MERGED = 32  # shares that the merge reads at once
MERGE_PROGRAMS = 1024  # more heads than that are merged several in a program, as most find nothing to do
LOG2E = tl.constexpr(1.4426950408889634)


def tile_keys(dim: int, wide: bool = False) -> int:
    """Keys of one loop turn, whatever the page size: 32 kB of K and V in 16 bits or, `wide`, in 32."""
    return (64 if dim <= 128 else 32) >> wide


@triton.jit
def capped(scores, scale, soft_cap):
    """soft_cap * tanh(scores * scale / soft_cap), by one exponential; right at both ends."""
    grown = tl.exp2(scores * (scale * 2 * LOG2E / soft_cap)) + 1
    return soft_cap - 2 * soft_cap / grown


@triton.jit
def exponent_factor(scale, HAS_CAP: tl.constexpr):
    """What turns scores into exponents of two; a cap has applied the scale already."""
    return LOG2E if HAS_CAP else scale * LOG2E


@triton.jit
def soften(scores, best, factor):
    """(weights, decay of what was summed before, new best) of one more tile of an online softmax.

    The factor, above zero, goes into the exponent's own multiply-add; `best` is of the scores before it.
    """
    higher = tl.maximum(best, tl.max(scores, 1))
    # A tile with no valid key must not turn -inf - -inf into NaN.
    anchor = tl.where(higher == float("-inf"), 0.0, higher * factor)
    return tl.exp2(scores * factor - anchor[:, None]), tl.exp2(best * factor - anchor), higher


@triton.jit
def sink_weight(sink, best):
    """What a sink adds to a sum of weights measured against `best`, an exponent of two; where it dwarfs them all that
    is infinite, and values over it are the zeros that they should be.
    """
    return tl.exp2(sink.to(tl.float32) * LOG2E - best)


@triton.jit
def tiles_of(context, window, TILE_N: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """(first tile, number of tiles) that hold keys of a context or of its window; (0, 0) for none."""
    first = context * 0
    if HAS_WINDOW:
        first = tl.maximum(context - window, 0) // TILE_N
    return first, tl.maximum(tl.cdiv(context, TILE_N) - first, 0)


@triton.jit
def share_out(
    contexts, count, window, slots,
    SEQUENCES: tl.constexpr, TILE_N: tl.constexpr, HAS_WINDOW: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """(tiles of a share at most, int32 [SEQUENCES] shares of each sequence): about `slots` shares in all,
    at most slots + count.
    """
    which = tl.arange(0, SEQUENCES)
    context = tl.load(contexts + which, mask=which < count, other=0)
    _, tiles = tiles_of(context, window, TILE_N, HAS_WINDOW)
    share = tl.maximum(tl.cdiv(tl.sum(tiles, 0), slots), LEAST)
    return share, tl.cdiv(tiles, share)


@triton.jit
def page_offsets(
    table, tile, valid, page_elements, BLOCK_SIZE: tl.constexpr, TILE_N: tl.constexpr, CLEAR: tl.constexpr
):
    """int64 [TILE_N]: where the page of each key of a tile begins in the cache; 0 of keys that are not valid.
    CLEAR: all are. Wide multiples of a page are added to addresses that no turn of a loop changes.
    """
    within = tl.arange(0, TILE_N)
    if TILE_N % BLOCK_SIZE == 0:
        entry = table + tile * (TILE_N // BLOCK_SIZE) + within // BLOCK_SIZE
    else:
        entry = table + (tile * TILE_N + within) // BLOCK_SIZE
    block = tl.load(entry) if CLEAR else tl.load(entry, mask=valid, other=0)
    return block.to(tl.int64) * page_elements


@triton.jit
def load_tile(
    cache, offsets, tile, valid, head, dims,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_N: tl.constexpr, CLEAR: tl.constexpr,
):  # fmt: skip
    """[TILE_N, DIM] of a paged cache; places that are not valid read as zero and touch no memory."""
    within = tl.arange(0, TILE_N)
    if TILE_N % BLOCK_SIZE == 0:
        row = within % BLOCK_SIZE
    else:
        row = (tile * TILE_N + within) % BLOCK_SIZE
    at = cache + (head * BLOCK_SIZE + row)[:, None] * HEAD_DIM + dims[None, :] + offsets[:, None]
    if CLEAR and HEAD_DIM == DIM:
        return tl.load(at)
    else:
        return tl.load(at, mask=valid[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def multipliable(query, cache):
    """The query in the dtype that products run in. Beside FP8 keys that is float16, which holds every e4m3
    number and is one instruction away for two of them; bfloat16 would take a detour by float32.
    """
    if cache.dtype.element_ty == tl.float8e4nv and query.dtype == tl.bfloat16:
        return tl.clamp(query.to(tl.float32), -65504.0, 65504.0).to(tl.float16)
    else:
        return query


@triton.jit
def widened(values, query, one):
    """Values in the dtype of the query. An FP8 tile is multiplied by a one that the compiler cannot see: so it
    widens before it changes its layout, which moves 16-bit numbers by matrix loads, and 8-bit ones byte by byte.
    """
    wide = values.to(query.dtype)
    if values.dtype == tl.float8e4nv:
        wide *= (tl.zeros([1, 1], tl.float32) + one).to(query.dtype)
    return wide


# Not specialised: what changes from step to step, which would compile anew in the middle of serving.
@triton.jit(do_not_specialize=["contexts", "table_stride", "count", "slots"])
def decode_kernel(
    q, k_cache, v_cache, out, partial, sums, tables, contexts, sinks,
    scale, k_scale, v_scale, soft_cap, window, one,
    q_stride, out_stride, table_stride, num_kv_heads, count, slots,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE_N: tl.constexpr, SEQUENCES: tl.constexpr, LEAST: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Grid (num_kv_heads, slots + count): the heads of a page, which lie side by side, are read at about the same
    time. Spare programs return at once. partial [slots + count, heads, HEAD_DIM] and sums [slots + count, heads, 2]
    are float32 scratch; sinks [heads] may be None. ROWS is GROUP, DIM is HEAD_DIM, and SEQUENCES is `count` rounded
    up to a power of two, ROWS to 16 and SEQUENCES to 32 at least.
    """
    head, item = tl.program_id(0), tl.program_id(1)
    share, shares = share_out(contexts, count, window, slots, SEQUENCES, TILE_N, HAS_WINDOW, LEAST)
    ends = tl.cumsum(shares, 0)
    before = ends <= item
    sequence = tl.sum(before.to(tl.int32), 0)
    if sequence >= count:
        return
    split = item - tl.max(tl.where(before, ends, 0), 0)
    context = tl.load(contexts + sequence)
    first_tile, tiles = tiles_of(context, window, TILE_N, HAS_WINDOW)
    splits = tl.cdiv(tiles, share)
    even = tl.cdiv(tiles, splits)
    begin = first_tile + split * even
    end = tl.minimum(begin + even, first_tile + tiles)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    heads = head * GROUP + rows
    live = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(
        q + sequence.to(tl.int64) * q_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=live, other=0.0
    )
    query = multipliable(query, k_cache)
    table = tables + sequence.to(tl.int64) * table_stride

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    factor = exponent_factor(scale * k_scale, HAS_CAP)
    page_elements = num_kv_heads * BLOCK_SIZE * HEAD_DIM
    for tile in range(begin, end):
        keys = tile * TILE_N + tl.arange(0, TILE_N)
        valid = keys < context
        if HAS_WINDOW:
            valid = valid & (keys >= context - window)
        offsets = page_offsets(table, tile, valid, page_elements, BLOCK_SIZE, TILE_N, False)
        k = load_tile(k_cache, offsets, tile, valid, head, dims, HEAD_DIM, DIM, BLOCK_SIZE, TILE_N, False)
        scores = tl.dot(query, tl.trans(k.to(query.dtype)))
        if HAS_CAP:
            scores = capped(scores, scale * k_scale, soft_cap)
        scores = tl.where(valid[None, :], scores, float("-inf"))
        weights, decay, best = soften(scores, best, factor)
        total = total * decay + tl.sum(weights, 1)
        v = load_tile(v_cache, offsets, tile, valid, head, dims, HEAD_DIM, DIM, BLOCK_SIZE, TILE_N, False)
        acc = acc * decay[:, None] + tl.dot(weights.to(query.dtype), widened(v, query, one))

    if splits == 1:
        if sinks is not None:
            total += sink_weight(tl.load(sinks + heads, mask=rows < GROUP, other=0.0), best * factor)
        result = acc * v_scale / total[:, None]
        where = out + sequence.to(tl.int64) * out_stride + heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(where, result.to(out.dtype.element_ty), mask=live)
    else:
        place = item.to(tl.int64) * num_kv_heads * GROUP + heads
        tl.store(partial + place[:, None] * HEAD_DIM + dims[None, :], acc, mask=live)
        tl.store(sums + place * 2, best * factor, mask=rows < GROUP)
        tl.store(sums + place * 2 + 1, total, mask=rows < GROUP)


@triton.jit(do_not_specialize=["contexts", "count", "slots"])
def merge_kernel(
    out, partial, sums, contexts, sinks, v_scale, window, out_stride, num_heads, count, slots,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE_N: tl.constexpr,
    SEQUENCES: tl.constexpr, LEAST: tl.constexpr, SHARES: tl.constexpr, MERGED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Grid (count, num_heads / HEADS): joins the shares of one sequence, and its sink, for HEADS heads in turn;
    returns at once where there was one share. SHARES is slots + 1 rounded up to a power of two.
    """
    sequence = tl.program_id(0)
    share, shares = share_out(contexts, count, window, slots, SEQUENCES, TILE_N, HAS_WINDOW, LEAST)
    _, tiles = tiles_of(tl.load(contexts + sequence), window, TILE_N, HAS_WINDOW)
    splits = tl.cdiv(tiles, share)
    if splits <= 1:
        return
    first = tl.sum(tl.where(tl.arange(0, SEQUENCES) < sequence, shares, 0), 0)
    dims = tl.arange(0, DIM)
    which = tl.arange(0, SHARES)
    some = tl.arange(0, MERGED)
    for i in range(HEADS):
        head = tl.program_id(1) * HEADS + i
        place = first.to(tl.int64) * num_heads + head
        at = sums + (place + which * num_heads) * 2
        highest = tl.max(tl.load(at, mask=which < splits, other=float("-inf")), 0)
        total = tl.zeros([MERGED], tl.float32)
        acc = tl.zeros([MERGED, DIM], tl.float32)
        for start in range(0, splits, MERGED):
            there = start + some < splits
            here = place + (start + some) * num_heads
            best = tl.load(sums + here * 2, mask=there, other=float("-inf"))
            weight = tl.where(best == float("-inf"), 0.0, tl.exp2(best - highest))
            total += weight * tl.load(sums + here * 2 + 1, mask=there, other=0.0)
            mask = there[:, None] & (dims < HEAD_DIM)[None, :]
            part = tl.load(partial + here[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
            acc += part * weight[:, None]
        weight_of_all = tl.sum(total, 0)
        if sinks is not None:
            weight_of_all += sink_weight(tl.load(sinks + head), highest)
        result = tl.sum(acc, 0) * v_scale / weight_of_all
        where = out + sequence.to(tl.int64) * out_stride + head * HEAD_DIM + dims
        tl.store(where, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)

"""Triton: one query per sequence over its paged past, the past split so that every SM has work.

The program (sequence, KV head, split) computes all query heads of its group at once, padded to 16 rows so
that the tensor cores take them. How many splits a sequence gets is decided here, from its length and the
number of SMs, so a captured graph serves any lengths. One split writes its result; several leave partial
sums that a second kernel merges.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAX_SPLITS = 64
TILE = 64  # keys of one loop turn, whatever the page size
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def num_splits(context, programs, num_sms, tile: tl.constexpr, max_splits: tl.constexpr):
    """Splits of one sequence: about two waves of programs in all, and four tiles a split at least."""
    tiles = tl.cdiv(context, tile)
    wanted = tl.cdiv(2 * num_sms, programs)
    return tl.maximum(1, tl.minimum(tl.minimum(wanted, tl.cdiv(tiles, 4)), max_splits))


@triton.jit
def load_tile(cache, table, keys, valid, head, num_kv_heads, block_size, dims, head_dim: tl.constexpr, width):
    """[keys, dims] of a paged cache; places that are not valid read as zero and touch no memory."""
    block = tl.load(table + keys // block_size, mask=valid, other=0).to(tl.int64)
    place = (block * num_kv_heads + head) * block_size + keys % block_size
    mask = valid[:, None] & (dims < width)[None, :]
    return tl.load(cache + place[:, None] * head_dim + dims[None, :], mask=mask, other=0.0)


@triton.jit
def decode_kernel(
    q, k_cache, v_cache, out, partial, sums, tables, contexts,
    scale, k_scale, v_scale, soft_cap, window,
    q_stride, out_stride, table_stride, num_kv_heads, num_sms,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE_N: tl.constexpr, SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Grid (n, num_kv_heads, SPLITS). partial [n, heads, SPLITS, HEAD_DIM] and sums [n, heads, SPLITS, 2]
    are float32 scratch; DIM is HEAD_DIM rounded up to a power of two.
    """
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts + sequence)
    splits = num_splits(context, tl.num_programs(0) * num_kv_heads, num_sms, TILE_N, SPLITS)
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(context - window, 0)
    first_tile = first_key // TILE_N
    tiles = tl.cdiv(context, TILE_N) - first_tile
    share = tl.cdiv(tiles, splits)
    begin = first_tile + split * share
    end = tl.minimum(begin + share, first_tile + tiles)
    if split >= splits or (context <= 0):
        return

    rows = tl.arange(0, 16)
    dims = tl.arange(0, DIM)
    heads = head * GROUP + rows
    live = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(
        q + sequence.to(tl.int64) * q_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=live, other=0.0
    )
    table = tables + sequence.to(tl.int64) * table_stride

    best = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, DIM], tl.float32)
    for tile in range(begin, end):
        keys = tile * TILE_N + tl.arange(0, TILE_N)
        valid = keys < context
        if HAS_WINDOW:
            valid = valid & (keys >= first_key)
        k = load_tile(k_cache, table, keys, valid, head, num_kv_heads, BLOCK_SIZE, dims, HEAD_DIM, HEAD_DIM)
        scores = tl.dot(query, tl.trans(k.to(query.dtype))) * (scale * k_scale)
        if HAS_CAP:
            scores = soft_cap * tanh(scores / soft_cap)
        scores = tl.where(valid[None, :], scores * LOG2E, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        # A tile with no valid key must not turn -inf - -inf into NaN.
        anchor = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - anchor[:, None])
        decay = tl.exp2(best - anchor)
        total = total * decay + tl.sum(weights, 1)
        v = load_tile(v_cache, table, keys, valid, head, num_kv_heads, BLOCK_SIZE, dims, HEAD_DIM, HEAD_DIM)
        acc = acc * decay[:, None] + tl.dot(weights.to(query.dtype), v.to(query.dtype))
        best = higher

    if splits == 1:
        result = acc * v_scale / total[:, None]
        where = out + sequence.to(tl.int64) * out_stride + heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(where, result.to(out.dtype.element_ty), mask=live)
    else:
        place = (sequence.to(tl.int64) * num_kv_heads * GROUP + heads) * SPLITS + split
        tl.store(partial + place[:, None] * HEAD_DIM + dims[None, :], acc, mask=live)
        tl.store(sums + place * 2, best, mask=rows < GROUP)
        tl.store(sums + place * 2 + 1, total, mask=rows < GROUP)


@triton.jit
def merge_kernel(
    out, partial, sums, contexts, v_scale, out_stride, num_heads, num_kv_heads, num_sms,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Grid (n, num_heads): joins the splits of one sequence and head; returns at once where there was one."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts + sequence)
    splits = num_splits(context, tl.num_programs(0) * num_kv_heads, num_sms, TILE_N, SPLITS)
    if splits == 1 or (context <= 0):
        return
    place = (sequence.to(tl.int64) * num_heads + head) * SPLITS
    which = tl.arange(0, SPLITS)
    there = which < splits
    dims = tl.arange(0, DIM)
    best = tl.load(sums + (place + which) * 2, mask=there, other=float("-inf"))
    total = tl.load(sums + (place + which) * 2 + 1, mask=there, other=0.0)
    weight = tl.where(best == float("-inf"), 0.0, tl.exp2(best - tl.max(best, 0)))
    part = tl.load(
        partial + (place + which)[:, None] * HEAD_DIM + dims[None, :],
        mask=there[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    result = tl.sum(part * weight[:, None], 0) * v_scale / tl.sum(total * weight, 0)
    where = out + sequence.to(tl.int64) * out_stride + head * HEAD_DIM + dims
    tl.store(where, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit
def tanh(x):
    """By the exponential; right at both ends."""
    return 1 - 2 / (tl.exp(2 * x) + 1)

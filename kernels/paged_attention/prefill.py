"""Triton: chunks of a prompt over their paged past, 64 or 128 query rows at a time.

A program owns a tile of query rows of one sequence and one KV head; the heads of a group stand side by side in
the rows, so keys are read once a group and Hopper's warpgroup instructions (64 rows) are filled. Tiles of
keys that every row may see run without a mask; only the diagonal and the edge of a window pay for one, in
tiles of their own size.

On paper (REPORT.md has the counts): registers leave room for one program an SM, so a program must hide latency
itself. The next tile and the table entries behind it are on their way while one is worked on. A turn of 128 keys
shares the rescaling of the results among twice the keys of a turn of 64: its instructions then issue faster
than the tensor cores multiply, and one warpgroup's softmax fits into the other's products.

Keys and values come by asynchronous copies of 16 bytes, not by TMA. A TMA box is one rectangle of one tensor; a
tile of 128 keys is eight pages of 16 in any order, and descriptors that gather exist from Blackwell on only.
Copies and their addresses are some 70 of the 600 instructions of a turn. Queries and results pass once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import capped, exponent_factor, load_tile, multipliable, page_offsets, sink_weight, soften


@triton.jit
def find_sequence(query_starts, tile, n, tile_tokens: tl.constexpr):
    """The sequence that query tile `tile` belongs to, when each starts on a tile of its own: the last i with
    query_starts[i] // tile_tokens + i <= tile.
    """
    low, high = 0, n
    while low < high - 1:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // tile_tokens + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def attend(
    query, acc, total, best, k_cache, v_cache, table, positions, head, page_elements, begin, end, context,
    scale, soft_cap, window, dims,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_N: tl.constexpr,
    MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Online softmax over key tiles begin..end; MASKED tiles compare every key with every row."""
    for tile in range(begin, end):
        keys = tile * TILE_N + tl.arange(0, TILE_N)
        valid = keys < context
        offsets = page_offsets(table, tile, valid, page_elements, BLOCK_SIZE, TILE_N, not MASKED)
        k = load_tile(
            k_cache, offsets, tile, valid, head, dims, HEAD_DIM, DIM, BLOCK_SIZE, TILE_N, not MASKED
        )
        scores = tl.dot(query, tl.trans(k.to(query.dtype)))
        if HAS_CAP:
            scores = capped(scores, scale, soft_cap)
        if MASKED:
            seen = keys[None, :] <= positions[:, None]
            if HAS_WINDOW:
                seen = seen & (keys[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        weights, decay, best = soften(scores, best, exponent_factor(scale, HAS_CAP))
        total = total * decay + tl.sum(weights, 1)
        v = load_tile(
            v_cache, offsets, tile, valid, head, dims, HEAD_DIM, DIM, BLOCK_SIZE, TILE_N, not MASKED
        )
        acc = acc * decay[:, None] + tl.dot(weights.to(query.dtype), v.to(query.dtype))
    return acc, total, best


@triton.jit
def loaded(values, place, live):
    """The same values, kept at `place` and read back. Matrix instructions of Hopper take a left side that was loaded
    from shared memory, and one that was computed from registers, which a tile of 128 x 256 and its results outgrow.
    """
    tl.store(place, values, mask=live)
    tl.debug_barrier()  # all threads have written before one of them reads
    return tl.load(place, mask=live, other=0.0)


@triton.jit
def rows_of(
    tile, sequence, begin, length, head, stride,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """(int64 [ROWS, DIM] offsets of a tile's query rows in a tensor of tokens `stride` apart, which of them exist)."""
    TOKENS: tl.constexpr = ROWS // GROUP
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    token = (tile - (begin // TOKENS + sequence)) * TOKENS + rows // GROUP
    live = ((token < length) & (rows < TOKENS * GROUP))[:, None] & (dims < HEAD_DIM)[None, :]
    heads = head * GROUP + rows % GROUP
    at = (begin + token).to(tl.int64)
    return at[:, None] * stride + heads[:, None] * HEAD_DIM + dims[None, :], live


@triton.jit
def key_tiles(
    lowest, context, window,
    TOKENS: tl.constexpr, TILE_N: tl.constexpr, EDGE_N: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Where the rows of TOKENS positions from `lowest` on begin and end to see keys: (first tile of EDGE_N that some
    row sees, first and last + 1 tile of TILE_N that every row sees, one past the last tile of EDGE_N).
    """
    first_edge, clear_from, clear_to = 0, 0, (lowest + 1) // TILE_N
    if HAS_WINDOW:
        first_edge = tl.maximum(lowest - window + 1, 0) // EDGE_N
        clear_from = tl.minimum(tl.cdiv(tl.maximum(lowest + TOKENS - window, 0), TILE_N), clear_to)
    return first_edge, clear_from, clear_to, tl.cdiv(tl.minimum(context, lowest + TOKENS), EDGE_N)


# Not specialised: what changes from step to step, which would compile anew in the middle of serving.
@triton.jit(do_not_specialize=["contexts", "query_starts", "table_stride", "n", "first_sequence"])
def prefill_kernel(
    q, k_cache, v_cache, out, tables, contexts, query_starts, sinks,
    scale, k_scale, v_scale, soft_cap, window,
    q_stride, out_stride, table_stride, n, num_kv_heads, first_sequence,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE_N: tl.constexpr, EDGE_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Grid (query tiles, num_kv_heads). The grid may be larger than needed: it is bounded by
    T // tokens + n without asking the device, and spare programs return at once. Sequences before
    `first_sequence` are decodes and belong to the other kernel. Tiles of TILE_N keys that every row sees,
    of EDGE_N, a divisor of it, where a mask is due. sinks [heads] may be None.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    # The last tiles of a prompt see most keys: they begin first, so that light ones fill the end.
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    sequence = find_sequence(query_starts, tile, n, TOKENS)
    begin = tl.load(query_starts + sequence)
    length = tl.load(query_starts + sequence + 1) - begin
    first = (tile - (begin // TOKENS + sequence)) * TOKENS
    context = tl.load(contexts + sequence)
    if sequence < first_sequence or first >= length:
        return

    places, live = rows_of(tile, sequence, begin, length, head, q_stride, GROUP, HEAD_DIM, DIM, ROWS)
    query = multipliable(tl.load(q + places, mask=live, other=0.0), k_cache)
    if DIM > 128 and query.dtype != q.dtype.element_ty:
        # The rows of the result belong to this program alone and have room for the query until then.
        room, _ = rows_of(tile, sequence, begin, length, head, out_stride, GROUP, HEAD_DIM, DIM, ROWS)
        query = loaded(query, (out + room).to(tl.pointer_type(query.dtype), bitcast=True), live)
    table = tables + sequence.to(tl.int64) * table_stride
    lowest = context - length + first  # position of the first row
    positions = lowest + tl.arange(0, ROWS) // GROUP
    first_edge, clear_from, clear_to, end = key_tiles(
        lowest, context, window, TOKENS, TILE_N, EDGE_N, HAS_WINDOW
    )

    EDGES: tl.constexpr = TILE_N // EDGE_N
    page_elements = num_kv_heads * BLOCK_SIZE * HEAD_DIM
    dims = tl.arange(0, DIM)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    if HAS_WINDOW:
        acc, total, best = attend(
            query, acc, total, best, k_cache, v_cache, table, positions, head, page_elements,
            first_edge, clear_from * EDGES, context, scale * k_scale, soft_cap, window, dims,
            HEAD_DIM, DIM, BLOCK_SIZE, EDGE_N, True, HAS_WINDOW, HAS_CAP,
        )  # fmt: skip
    acc, total, best = attend(
        query, acc, total, best, k_cache, v_cache, table, positions, head, page_elements,
        clear_from, clear_to, context, scale * k_scale, soft_cap, window, dims,
        HEAD_DIM, DIM, BLOCK_SIZE, TILE_N, False, HAS_WINDOW, HAS_CAP,
    )  # fmt: skip
    acc, total, best = attend(
        query, acc, total, best, k_cache, v_cache, table, positions, head, page_elements,
        tl.maximum(clear_to * EDGES, first_edge), end, context, scale * k_scale, soft_cap, window, dims,
        HEAD_DIM, DIM, BLOCK_SIZE, EDGE_N, True, HAS_WINDOW, HAS_CAP,
    )  # fmt: skip

    # Asked for once more, so that addresses and masks of the rows need no registers in the loops.
    begin = tl.load(query_starts + sequence, volatile=True)
    length = tl.load(query_starts + sequence + 1, volatile=True) - begin
    places, live = rows_of(tile, sequence, begin, length, head, out_stride, GROUP, HEAD_DIM, DIM, ROWS)
    if sinks is not None:
        sink = tl.load(sinks + head * GROUP + tl.arange(0, ROWS) % GROUP)
        total += sink_weight(sink, best * exponent_factor(scale * k_scale, HAS_CAP))
    result = acc * v_scale / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=live)

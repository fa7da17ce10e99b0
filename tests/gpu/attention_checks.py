"""Paged attention against attention over keys laid side by side.

Pages stand in random order; every place that no sequence wrote, and every page that none owns, holds NaN;
block tables point out of range past their sequence's end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from camshaft.kernels import launch
from camshaft.kernels.fp8 import FP8
from camshaft.kernels.paged_attention import Sequences
from camshaft.kernels.paged_attention.decode import share_out, tiles_of
from camshaft.kernels.paged_attention.triton import paged_attention

from .check import TOLERANCE, Check, Place, compare, replaced, seed_all


@triton.jit
def _shares_kernel(
    contexts,
    out,
    count,
    slots,
    SEQUENCES: tl.constexpr,  # noqa: N803
    TILE_N: tl.constexpr,  # noqa: N803
    LEAST: tl.constexpr,  # noqa: N803
):
    """Shares, tiles of a share and tiles of each sequence."""
    which = tl.arange(0, SEQUENCES)
    share, shares = share_out(contexts, count, 0, slots, SEQUENCES, TILE_N, False, LEAST)  # pyright: ignore[reportGeneralTypeIssues]
    _, tiles = tiles_of(tl.load(contexts + which), 0, TILE_N, False)
    tl.store(out + which, shares)
    tl.store(out + SEQUENCES + which, shares * 0 + share)
    tl.store(out + 2 * SEQUENCES + which, tiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`lengths` are (queries, context) of each sequence, those of one query first."""

    dim: int
    group: int
    page: int
    lengths: Sequence[tuple[int, int]]
    kv_heads: int = 1
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    fp8: bool = False
    decodes: int | None = None  # None: as many as have one query
    first_block: int = 0  # blocks before it exist and are never touched
    heavy: bool = False

    @property
    def name(self) -> str:
        extras = [
            f"k{self.kv_heads}" if self.kv_heads > 1 else "",
            f"window{self.window}" if self.window else "",
        ]
        extras += ["cap" if self.soft_cap else "", "sinks" if self.sinks else ""]
        extras += ["fp8" if self.fp8 else "", "far" if self.first_block else ""]
        parts = [f"d{self.dim}", f"g{self.group}", f"p{self.page}", f"n{len(self.lengths)}"]
        longest = max(self.lengths, key=lambda pair: pair[1])
        return "-".join([*parts, f"{longest[0]}of{longest[1]}", *filter(None, extras)])


@dataclass(slots=True)
class Case:
    """Inputs of one call, with every sequence's keys and values also laid side by side."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    sequences: Sequences
    keys: list[torch.Tensor]  # float32 [kv_heads, context, dim]
    values: list[torch.Tensor]
    sinks: torch.Tensor | None  # [heads]


K_SCALE, V_SCALE = 0.5, 0.25  # powers of two: exact in any dtype


def make_case(shape: Shape, place: Place) -> Case:
    """Random numbers in random pages."""
    needed = [-(-context // shape.page) for _, context in shape.lengths]
    spare = 2
    size = (sum(needed) + spare, shape.kv_heads, shape.page, shape.dim)
    pages_k, pages_v = torch.full(size, float("nan")), torch.full(size, float("nan"))
    order = torch.randperm(size[0]).tolist()
    tables = torch.full((len(shape.lengths), max(needed) + 3), 2**30, dtype=torch.int32)
    stored = FP8 if shape.fp8 else place.dtype
    keys, values = [], []
    for i, (_, context) in enumerate(shape.lengths):
        k, v = (torch.randn(shape.kv_heads, context, shape.dim).to(stored).float() for _ in range(2))
        for j in range(needed[i]):
            block = order.pop()
            tables[i, j] = block + shape.first_block
            here = slice(j * shape.page, min(context, (j + 1) * shape.page))
            count = here.stop - here.start
            pages_k[block, :, :count], pages_v[block, :, :count] = k[:, here], v[:, here]
        keys.append(k * K_SCALE if shape.fp8 else k)
        values.append(v * V_SCALE if shape.fp8 else v)
    starts = torch.tensor([0] + [queries for queries, _ in shape.lengths]).cumsum(0)
    num_heads = shape.group * shape.kv_heads
    q = place.tensor(int(starts[-1]), (num_heads + 2 * shape.kv_heads) * shape.dim)[
        :, : num_heads * shape.dim
    ]
    sequences = Sequences(
        starts.to(place.device, torch.int32),
        torch.tensor([context for _, context in shape.lengths], dtype=torch.int32, device=place.device),
        tables.to(place.device),
        sum(queries == 1 for queries, _ in shape.lengths) if shape.decodes is None else shape.decodes,
        max(queries for queries, _ in shape.lengths),
        max(context for _, context in shape.lengths),
    )
    k_cache, v_cache = (_behind(shape, pages, stored, place) for pages in (pages_k, pages_v))
    sinks = None
    if shape.sinks:  # as heavy as keys, nothing at all, and so heavy that nothing of the values is left
        sinks = place.tensor(num_heads) * 3
        sinks[1:3] = torch.tensor([float("-inf"), 300.0])[: num_heads - 1]
    return Case(q, k_cache, v_cache, sequences, keys, values, sinks)


def _behind(shape: Shape, pages: torch.Tensor, dtype: torch.dtype, place: Place) -> torch.Tensor:
    """The pages with `first_block` others before them, whose memory is never touched."""
    cache = torch.empty((shape.first_block + len(pages), *pages.shape[1:]), dtype=dtype, device=place.device)
    cache[shape.first_block :] = pages.to(place.device).to(dtype)
    return cache


def dense(shape: Shape, case: Case, scale: float) -> torch.Tensor:
    """float32 [T, heads * dim]: softmax over each query's own past, one sequence at a time."""
    out, starts = [], case.sequences.query_starts.tolist()
    for i, (queries, context) in enumerate(shape.lengths):
        q = case.q[starts[i] : starts[i + 1]].float().cpu().view(queries, -1, shape.dim)
        k, v = (t.repeat_interleave(shape.group, dim=0) for t in (case.keys[i], case.values[i]))
        scores = torch.einsum("thd,hkd->htk", q, k) * scale
        if shape.soft_cap:
            scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
        mine = torch.arange(context - queries, context)[:, None]
        theirs = torch.arange(context)[None]
        hidden = (theirs > mine) | (theirs <= mine - (shape.window or context + 1))
        scores = scores.masked_fill(hidden, float("-inf"))
        if case.sinks is not None:
            sink = case.sinks.float().cpu().view(-1, 1, 1).expand(-1, queries, 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = scores.softmax(-1)[..., :context]
        out.append(torch.einsum("htk,hkd->thd", weights, v).reshape(queries, -1))
    return torch.cat(out)


def attend(shape: Shape, case: Case, scale: float, spare_rows: int = 0) -> torch.Tensor:
    """The kernel's result; `spare_rows` rows of padding behind the queries must stay as they are."""
    padding = torch.full_like(case.q[:1].expand(spare_rows, -1), float("nan"))
    q = torch.cat([case.q, padding]) if spare_rows else case.q
    out = torch.full((len(q), q.shape[1]), 7.0, dtype=q.dtype, device=q.device)
    scales = {"kv_scales": (K_SCALE, V_SCALE)} if shape.fp8 else {}
    paged_attention(
        q, case.k_cache, case.v_cache, case.sequences, scale, shape.window, out,
        soft_cap=shape.soft_cap, sinks=case.sinks, **scales,
    )  # fmt: skip
    assert torch.all(out[len(case.q) :] == 7.0), "a row that no sequence owns was written"
    return out[: len(case.q)]


def check(shape: Shape) -> Check:
    def run(place: Place) -> None:
        seed_all(len(shape.lengths) + shape.dim)
        case = make_case(shape, place)
        scale = shape.dim**-0.5
        got = attend(shape, case, scale, spare_rows=3)
        compare(got, dense(shape, case, scale), TOLERANCE[place.dtype])
        assert torch.equal(got, attend(shape, case, scale, spare_rows=3)), "two runs differ"

    return Check(f"attention-{shape.name}", run, shape.heavy)


def ones(*contexts: int) -> list[tuple[int, int]]:
    return [(1, context) for context in contexts]


# The first nine of both lists hold every pair of head size, group, page size, window, cap, FP8 and one or two heads,
# all of a list those with sinks too.
DECODE = [
    Shape(dim=64, group=1, page=16, lengths=ones(1, 15, 16, 17)),
    Shape(dim=64, group=4, page=32, lengths=ones(64, 65, 4000), window=100, soft_cap=5.0, sinks=True),
    Shape(
        dim=64, group=8, page=64, lengths=ones(255, 256, 257), soft_cap=5.0, sinks=True, fp8=True, kv_heads=2
    ),
    Shape(dim=128, group=1, page=32, lengths=ones(1, 2000), soft_cap=30.0, fp8=True, kv_heads=2),
    Shape(dim=128, group=4, page=64, lengths=ones(4000, 1), window=2500, kv_heads=2),
    Shape(dim=128, group=8, page=16, lengths=ones(4000), window=1000, fp8=True),
    Shape(dim=256, group=1, page=64, lengths=ones(300, 31), window=1, sinks=True, fp8=True),
    Shape(dim=256, group=4, page=16, lengths=ones(129, 1000), soft_cap=5.0, fp8=True, kv_heads=2),
    Shape(dim=256, group=8, page=32, lengths=ones(1, 700)),
    Shape(dim=128, group=4, page=64, lengths=ones(4000, 1)),
    Shape(dim=128, group=8, page=16, lengths=ones(70, 500), sinks=True, fp8=True),
    Shape(dim=64, group=8, page=16, lengths=ones(1, 128, 129, 2000), window=128, sinks=True),
    Shape(dim=96, group=3, page=16, lengths=ones(40, 333), kv_heads=2),
    Shape(dim=64, group=16, page=16, lengths=ones(600, 2), kv_heads=2),
    Shape(dim=64, group=20, page=16, lengths=ones(130, 17)),
    Shape(dim=128, group=5, page=16, lengths=[*ones(*range(1, 30)), (1, 3000)], window=2900),
]
PREFILL = [
    Shape(dim=64, group=1, page=16, lengths=[(1000, 1000)], heavy=True),
    Shape(
        dim=64, group=4, page=32, lengths=[(40, 40), (5, 133), (3, 3)], window=37, soft_cap=5.0, sinks=True
    ),
    Shape(
        dim=64,
        group=8,
        page=64,
        lengths=[(33, 300), (16, 16)],
        soft_cap=5.0,
        sinks=True,
        fp8=True,
        kv_heads=2,
    ),
    Shape(dim=128, group=1, page=32, lengths=[(64, 64), (65, 330)], soft_cap=30.0, fp8=True, kv_heads=2),
    Shape(dim=128, group=4, page=64, lengths=[(70, 900)], window=600, kv_heads=2, heavy=True),
    Shape(dim=128, group=8, page=16, lengths=[(100, 164)], window=50, fp8=True),
    Shape(dim=256, group=1, page=64, lengths=[(130, 200)], window=100, sinks=True, fp8=True),
    Shape(dim=256, group=4, page=16, lengths=[(20, 333)], soft_cap=5.0, fp8=True, kv_heads=2),
    Shape(dim=256, group=8, page=32, lengths=[(9, 9)]),
    Shape(dim=128, group=4, page=64, lengths=[(128, 4000)], heavy=True),
    Shape(dim=128, group=8, page=16, lengths=[(100, 464)], sinks=True),
    Shape(dim=64, group=8, page=16, lengths=[(40, 40), (70, 300)], window=128, sinks=True, kv_heads=2),
    Shape(dim=64, group=4, page=32, lengths=[(40, 40), (5, 433), (3, 3)], kv_heads=2),
    Shape(dim=256, group=2, page=64, lengths=[(70, 200)]),
    Shape(dim=80, group=3, page=16, lengths=[(50, 77)], kv_heads=2),
    Shape(dim=128, group=4, page=16, lengths=[(30, 90), (200, 200)], window=64),
]
MIXED = [
    Shape(dim=64, group=3, page=16, lengths=[*ones(1, 77, 400), (20, 20), (7, 140)], kv_heads=2, sinks=True),
    Shape(dim=128, group=4, page=32, lengths=[*ones(130), (1, 50), (1, 1), (40, 41)], decodes=1),
]
# The first element of these pages lies more than 2^31 elements behind the start of the cache.
FAR = [
    Shape(dim=64, group=4, page=16, lengths=[*ones(100), (5, 20)], first_block=2**31 // (64 * 16) + 1),
]


def splits_agree() -> Check:
    """However many shares a sequence is cut into, with programs to spare or a window, the result stands."""

    def run(place: Place) -> None:
        seed_all(3)
        for window, sinks in ((None, True), (130, False)):
            shape = Shape(dim=64, group=4, page=16, lengths=ones(1500, 64, 300), window=window, sinks=sinks)
            case = make_case(shape, place)
            expected = dense(shape, case, 0.125)
            for sms in (1, 3, 12, 100):
                compare(_with_sms(sms, shape, case), expected, TOLERANCE[place.dtype])

    return Check("attention-splits", run)


def empty_among_others() -> Check:
    """Sequences of no context between others: nothing of theirs is read, and the others' shares stand."""

    def run(place: Place) -> None:
        seed_all(6)
        shape = Shape(dim=64, group=4, page=16, lengths=ones(900, 90, 33, 1200), kv_heads=2)
        case = make_case(shape, place)
        expected = dense(shape, case, 0.125)
        case.sequences.context_lens[[0, 2]] = 0
        case.sequences.block_tables[[0, 2]] = 2**30
        got = attend(shape, case, 0.125)
        compare(got[[1, 3]], expected[[1, 3]], TOLERANCE[place.dtype])
        assert torch.all(got[[0, 2]] == 7.0), "a sequence of no context was written"

    return Check("attention-empty-sequences", run)


def shares() -> Check:
    """Every tile belongs to one share, the shares fit the grid, and a long sequence gets most of them."""

    def run(place: Place) -> None:
        contexts = torch.tensor([100_000, *([500] * 30), 0], dtype=torch.int32, device=place.device)
        out = torch.zeros((3, 32), dtype=torch.int32, device=place.device)
        _shares_kernel[(1,)](contexts, out, 32, 64, SEQUENCES=32, TILE_N=64, LEAST=4)  # type: ignore[arg-type]
        count, share, tiles = out.tolist()
        assert sum(count) <= 64 + 32
        assert all(n * s >= t for n, s, t in zip(count, share, tiles, strict=True))
        assert count[-1] == 0
        assert set(count[1:-1]) == {1}
        assert count[0] == 54  # 1,563 tiles of 1,803 in all: 29 a share

    return Check("attention-shares", run)


def _with_sms(sms: int, shape: Shape, case: Case) -> torch.Tensor:
    with replaced(launch, "num_sms", lambda device: sms):
        return attend(shape, case, 0.125)


def older_gpus() -> Check:
    """The tiles that a GPU without Hopper's instructions gets, and those of few query rows."""

    def run(place: Place) -> None:
        for dim, queries in ((64, 150), (128, 40), (256, 70), (128, 5)):
            seed_all(dim + queries)
            shape = Shape(dim=dim, group=2, page=16, lengths=[(queries, 210), (3, 3)])
            case = make_case(shape, place)
            with replaced(launch, "capability", lambda device: (8, 0)):
                got = attend(shape, case, dim**-0.5)
            compare(got, dense(shape, case, dim**-0.5), TOLERANCE[place.dtype])

    return Check("attention-older-gpus", run)


def padded_decodes() -> Check:
    """Decode rows of length 0, as a captured graph carries them, read nothing and write nothing."""

    def run(place: Place) -> None:
        seed_all(4)
        shape = Shape(dim=64, group=4, page=16, lengths=ones(90, 33))
        case = make_case(shape, place)
        expected = attend(shape, case, 0.125)
        s = case.sequences
        wild = torch.full_like(s.block_tables[:1].expand(2, -1), 2**30)
        case.q = torch.cat([case.q, torch.full_like(case.q, float("nan"))])
        case.sequences = dataclasses.replace(
            s,
            query_starts=torch.arange(5, dtype=torch.int32, device=place.device),
            context_lens=torch.cat([s.context_lens, torch.zeros_like(s.context_lens)]),
            block_tables=torch.cat([s.block_tables, wild]),
            num_decodes=4,
        )
        got = attend(shape, case, 0.125)
        # Another batch size may take another number of splits, so only near equality is due.
        compare(got[:2], expected, TOLERANCE[place.dtype])
        assert torch.all(got[2:] == 7.0)

    return Check("attention-padded-decodes", run)


CHECKS = [
    *(check(shape) for shape in (*DECODE, *PREFILL, *MIXED, *FAR)),
    splits_agree(),
    empty_among_others(),
    shares(),
    older_gpus(),
    padded_decodes(),
]

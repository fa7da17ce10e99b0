from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.kernels.checks import KernelInputError
from camshaft.kernels.paged_attention import Sequences, paged_attention, reference
from camshaft.kernels.paged_attention import cpu as native


@dataclass
class Case:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sequences: Sequences
    scale: float


def make_case(
    lengths: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, block_size: int, seed: int = 0
) -> Case:
    """Sequences of (queries, context); blocks in random order, what no sequence wrote is NaN."""
    torch.manual_seed(seed)
    needed = [-(-context // block_size) for _, context in lengths]
    blocks = sum(needed) + 3
    order = torch.randperm(blocks).tolist()
    k = torch.full((blocks, kv_heads, block_size, dim), float("nan"))
    v = k.clone()
    tables = torch.full((len(lengths), max(needed)), 2**30, dtype=torch.int32)
    for i, (_, context) in enumerate(lengths):
        for j in range(needed[i]):
            tables[i, j] = block = order.pop()
            count = min(block_size, context - j * block_size)
            k[block, :, :count] = torch.randn(kv_heads, count, dim)
            v[block, :, :count] = torch.randn(kv_heads, count, dim)
    starts = np.cumsum([0] + [queries for queries, _ in lengths])
    qkv = torch.randn(int(starts[-1]), (heads + 2 * kv_heads) * dim)
    sequences = Sequences(
        torch.from_numpy(starts.astype(np.int32)),
        torch.tensor([context for _, context in lengths], dtype=torch.int32),
        tables,
        sum(queries == 1 for queries, _ in lengths),
        max(queries for queries, _ in lengths),
        max(context for _, context in lengths),
    )
    return Case(qkv[:, : heads * dim], k, v, sequences, dim**-0.5)


def dense(case: Case, window: int | None) -> torch.Tensor:
    """What torch's own attention gives, sequence by sequence, with keys and values laid side by side."""
    out, block_size, dim = [], case.k.shape[2], case.k.shape[3]
    starts = case.sequences.query_starts.tolist()
    for i, context in enumerate(case.sequences.context_lens.tolist()):
        table = case.sequences.block_tables[i]
        slots = [(int(table[p // block_size]), p % block_size) for p in range(context)]
        keys, values = (torch.stack([c[b, :, o] for b, o in slots], dim=1) for c in (case.k, case.v))
        q = case.q[starts[i] : starts[i + 1]]
        q = q.reshape(len(q), -1, dim).transpose(0, 1)
        mine = torch.arange(context - q.shape[1], context)[:, None]
        theirs = torch.arange(context)[None]
        seen = (theirs <= mine) & (theirs > mine - (window or context + 1))
        attended = torch.nn.functional.scaled_dot_product_attention(
            q[None], keys[None], values[None], attn_mask=seen, scale=case.scale, enable_gqa=True
        )
        out.append(attended[0].transpose(0, 1).reshape(q.shape[1], -1))
    return torch.cat(out)


MIXED = [(1, 1), (1, 16), (1, 17), (1, 200), (5, 5), (70, 70), (33, 133), (64, 192), (1, 600), (20, 530)]


@pytest.mark.parametrize("window", [None, 1, 7, 64, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [(9, 3, 64, 16), (4, 4, 32, 8), (8, 1, 80, 16), (4, 2, 128, 5), (2, 1, 256, 32), (3, 3, 20, 16)],
)
def test_equals_dense_attention(
    heads: int, kv_heads: int, dim: int, block_size: int, window: int | None
) -> None:
    case = make_case(MIXED, heads, kv_heads, dim, block_size)
    expected = dense(case, window)
    got = paged_attention(case.q, case.k, case.v, case.sequences, case.scale, window)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    plain = torch.zeros_like(got)
    reference.paged_attention(case.q, case.k, case.v, case.sequences, case.scale, window, plain)
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_runs_through_the_reference() -> None:
    case = make_case(MIXED, 4, 2, 32, 16)
    q, k, v = (t.bfloat16() for t in (case.q, case.k, case.v))
    got = paged_attention(q, k, v, case.sequences, case.scale)
    torch.testing.assert_close(got.float(), dense(case, None), rtol=5e-2, atol=5e-2)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    context=st.integers(1, 150) | st.integers(250, 700),
    cuts=st.lists(st.integers(1, 60) | st.just(1), min_size=1, max_size=12),
    block_size=st.sampled_from([3, 8, 16]),
    window=st.sampled_from([None, 20, 70, 300]),
    others=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 100)), max_size=4),
)
def test_a_query_has_the_same_bits_in_every_chunk_and_batch(
    context: int, cuts: list[int], block_size: int, window: int | None, others: list[tuple[int, int]]
) -> None:
    lengths = [(context, context)] + [(queries, queries + past) for queries, past in others]
    case = make_case(lengths, 6, 2, 32, block_size, seed=context)
    together = paged_attention(case.q, case.k, case.v, case.sequences, case.scale, window)
    done = 0
    while done < context:
        count = min(cuts[done % len(cuts)], context - done)
        chunk = Sequences(
            torch.tensor([0, count], dtype=torch.int32),
            torch.tensor([done + count], dtype=torch.int32),
            case.sequences.block_tables[:1],
            0,
            count,
            done + count,
        )
        rows = slice(done, done + count)
        alone = paged_attention(case.q[rows], case.k, case.v, chunk, case.scale, window)
        assert torch.equal(alone, together[rows])
        done += count


@pytest.mark.parametrize("window", [None, 100, 300])
@pytest.mark.parametrize("contexts", [[1], [256], [257], [511, 512, 513], [960, 3, 700], [300] * 60])
@pytest.mark.parametrize("sinks", [None, torch.linspace(-4, 9, 9)], ids=["plain", "sinks"])
def test_a_decode_has_the_same_bits_cut_into_segments_or_not(
    contexts: list[int], window: int | None, sinks: torch.Tensor | None
) -> None:
    """A chunk beside decodes keeps them whole; many decodes are whole too, few are shared out."""
    case = make_case([(1, context) for context in contexts] + [(2, 2)], 9, 3, 64, 16, seed=len(contexts))
    whole = paged_attention(case.q, case.k, case.v, case.sequences, case.scale, window, sinks=sinks)
    n = len(contexts)
    decodes = Sequences(
        case.sequences.query_starts[: n + 1],
        case.sequences.context_lens[:n],
        case.sequences.block_tables[:n],
        n,
        1,
        max(contexts),
    )
    for _ in range(3):  # whoever comes last folds: not always the same
        shared = paged_attention(case.q[:n], case.k, case.v, decodes, case.scale, window, sinks=sinks)
        assert torch.equal(shared, whole[:n])


def test_rows_that_no_sequence_owns_are_left_alone() -> None:
    case = make_case([(1, 9), (4, 4)], 4, 2, 32, 8)
    q = torch.cat([case.q, torch.randn(3, case.q.shape[1])])
    out = torch.full_like(q, 7.0)
    paged_attention(q, case.k, case.v, case.sequences, case.scale, None, out)
    assert torch.all(out[5:] == 7.0)
    assert not torch.any(out[:5] == 7.0)


def test_large_scores_do_not_overflow() -> None:
    case = make_case([(3, 90)], 4, 2, 32, 8)
    got = paged_attention(case.q * 1e4, case.k, case.v, case.sequences, case.scale)
    case.q = case.q * 1e4
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, dense(case, None), rtol=1e-3, atol=1e-3)


def test_sizes_that_do_not_fit_are_refused() -> None:
    case = make_case([(1, 1)], 4, 2, 32, 8)
    with pytest.raises(ValueError, match="do not fit 2 heads of 32"):
        paged_attention(case.q[:, :100], case.k, case.v, case.sequences, 1.0)
    with pytest.raises(ValueError, match="the caches differ"):
        paged_attention(case.q, case.k, case.v[:1], case.sequences, 1.0)


@pytest.mark.parametrize("window", [None, 20])
def test_a_soft_cap_bounds_scores(window: int | None) -> None:
    case = make_case([(1, 40), (9, 70)], 4, 2, 32, 8)
    wide = paged_attention(case.q, case.k, case.v, case.sequences, case.scale, window, soft_cap=1e4)
    torch.testing.assert_close(wide, dense(case, window), rtol=1e-4, atol=1e-4)
    # Below a tiny cap all scores are alike: each query gets the mean of what it sees.
    flat = paged_attention(case.q, case.k, case.v, case.sequences, case.scale, window, soft_cap=1e-6)
    case.q = case.q * 0
    torch.testing.assert_close(flat, dense(case, window), rtol=1e-4, atol=1e-4)


def test_sinks_take_their_share_and_give_nothing() -> None:
    """A sink as heavy as nine keys, and one without weight."""
    case = make_case([(1, 9), (5, 5)], heads=4, kv_heads=2, dim=16, block_size=4)
    case.k.nan_to_num_(0.0).mul_(0.0)  # every score is 0
    args = case.q, case.k, case.v, case.sequences, case.scale
    plain = paged_attention(*args)
    nothing = paged_attention(*args, sinks=torch.full((4,), float("-inf")))
    torch.testing.assert_close(nothing, plain, rtol=1e-5, atol=1e-6)
    heavy = paged_attention(*args, sinks=torch.full((4,), 9.0).log())
    seen = torch.tensor([9.0, 1.0, 2.0, 3.0, 4.0, 5.0])[:, None]  # keys
    torch.testing.assert_close(heavy, plain * seen / (seen + 9), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"), [(9, 3, 64, 16), (8, 1, 80, 16), (4, 4, 20, 5)]
)
def test_sinks_equal_those_of_plain_torch(
    heads: int, kv_heads: int, dim: int, block_size: int, window: int | None
) -> None:
    """Also one of no weight, and one that leaves nothing of the values."""
    for lengths in (MIXED, [(1, context) for context in (1, 256, 700, 1025)]):
        case = make_case(lengths, heads, kv_heads, dim, block_size)
        sinks = torch.randn(heads) * 3
        sinks[1:3] = torch.tensor([float("-inf"), 300.0])
        args = case.q, case.k, case.v, case.sequences, case.scale, window
        got, plain = paged_attention(*args, sinks=sinks), torch.zeros_like(case.q)
        reference.paged_attention(*args, plain, sinks=sinks)
        torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("window", 0),
        ("window", -3),
        ("soft_cap", 0.0),
        ("soft_cap", float("nan")),
        ("soft_cap", float("inf")),
        ("kv_scales", (2.0, 1.0)),
        ("kv_scales", (0.0, 1.0)),
        ("sinks", torch.zeros(2)),
        ("out", torch.empty(2, 128)),
    ],
)
def test_a_wrong_argument_is_named(argument: str, value: object) -> None:
    case = make_case([(1, 1)], 4, 2, 32, 8)
    with pytest.raises(KernelInputError) as raised:
        paged_attention(case.q, case.k, case.v, case.sequences, 1.0, **{argument: value})  # type: ignore[arg-type]
    assert raised.value.argument == argument


def test_the_cpu_kernel_is_the_one_that_runs() -> None:
    from camshaft.kernels.paged_attention import _best

    assert _best(torch.empty(1)) is native.paged_attention
    assert _best(torch.empty(1, dtype=torch.bfloat16)) is reference.paged_attention

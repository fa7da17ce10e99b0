"""Sampling and the preparation of a batch on the device against plain torch."""

from __future__ import annotations

import torch

from camshaft.kernels.prepare_batch import reference as prepare_reference
from camshaft.kernels.prepare_batch.triton import prepare_batch
from camshaft.kernels.sample import Draws, reference
from camshaft.kernels.sample.triton import sample

from .check import Check, Place, seed_all

# (temperature, top_k, top_p, min_p)
FILTERS = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 1, 1.0, 0.0),
    (1.0, 0, 0.6, 0.0),
    (0.8, 0, 1.0, 0.1),
    (0.9, 40, 0.9, 0.02),
    (2.0, 0, 0.05, 0.0),
    (5.0, 300, 0.5, 0.3),
]


def draws_of(rows: int, device: torch.device) -> Draws:
    """Every row of FILTERS in turn, each with a seed of its own, some beyond 32 bits."""
    columns = [torch.tensor([FILTERS[i % len(FILTERS)][j] for i in range(rows)]) for j in range(4)]
    seeds = torch.arange(rows) * 0x123456789AB - 5
    fields = (
        columns[0].float(),
        columns[1].int(),
        columns[2].float(),
        columns[3].float(),
        seeds,
        torch.arange(rows),
    )
    return Draws(*(field.to(device) for field in fields))


def same_tokens(rows: int, vocab: int) -> Check:
    """The kernel draws the reference's tokens: same noise, same filters."""

    def run(place: Place) -> None:
        seed_all(vocab)
        logits = 3 * torch.randn(rows, vocab + 3)[:, :vocab]
        logits[:, ::7] = float("-inf")
        logits[0, 5] = logits[0, 9] = 100.0  # a tie of the greedy row
        logits, draws = logits.to(place.device), draws_of(rows, place.device)
        expected, got = (torch.full((rows,), -1, device=place.device) for _ in range(2))
        reference.sample(logits, draws, expected)
        sample(logits, draws, got)
        # A logarithm that differs in its last bit may turn one close draw; none is close on a CPU.
        allowed = 0 if place.device.type == "cpu" else max(1, rows // 50)
        assert int((got != expected).sum()) <= allowed, (got.tolist(), expected.tolist())
        assert torch.isfinite(logits.gather(1, got[:, None])).all()

    return Check(f"sample-{rows}x{vocab}", run)


def distribution() -> Check:
    """Many draws of one row have the softmax's frequencies (chi-squared, 99.9 %)."""

    def run(place: Place) -> None:
        seed_all(0)
        rows, vocab = 400 if place.device.type == "cpu" else 20_000, 6
        logits = torch.randn(vocab).repeat(rows, 1).to(place.device)
        like = torch.zeros(rows, device=place.device)
        seeds = torch.full((rows,), 77, device=place.device)
        draws = Draws(like + 1, like.int(), like + 1, like, seeds, torch.arange(rows, device=place.device))
        got = torch.zeros(rows, dtype=torch.int64, device=place.device)
        sample(logits, draws, got)
        counts = torch.bincount(got.cpu(), minlength=vocab).float()
        expected = logits[0].softmax(0).cpu() * rows
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert statistic < 20.52, f"chi-squared of 5 degrees of freedom: {statistic:.1f}"

    return Check("sample-distribution", run)


def largest_word() -> Check:
    """Noise stays finite: the token whose word is the largest but nine does not beat one a hundred above it."""

    def run(place: Place) -> None:
        seed, column, position = 1, 3344, 11669
        every = torch.arange(4096)
        word = reference.philox(torch.tensor(seed), every, torch.tensor(position))[column]
        assert int(word) == 0xFFFFFFF6
        assert reference.gumbel(torch.tensor([0, 0xFFFFFFFF, int(word)])).isfinite().all()
        logits, one = torch.zeros(1, 4096, device=place.device), torch.ones(1, device=place.device)
        logits[0, 7] = 100.0
        draws = Draws(one, one.int() * 0, one, one * 0, one.long() * seed, one.long() * position)
        got = torch.full((1,), -1, device=place.device)
        sample(logits, draws, got)
        assert got.tolist() == [7]

    return Check("sample-largest-word", run)


def prepared() -> Check:
    def run(place: Place) -> None:
        seed_all(2)
        known = torch.randint(0, 1000, (6, 700)).to(place.device)
        tables = torch.randperm(6 * 44).view(6, 44).int().to(place.device)
        rows, starts = (
            torch.tensor(x, dtype=torch.int32, device=place.device) for x in ([4, 0, 5], [37, 0, 16])
        )
        query_starts = torch.tensor([0, 1, 301, 318], dtype=torch.int32, device=place.device)
        for total in (318, 400, 900):
            expected, got = (torch.full((3, total), -9, device=place.device) for _ in range(2))
            prepare_reference.prepare_batch(known, tables, rows, starts, query_starts, 16, expected)
            prepare_batch(known, tables, rows, starts, query_starts, 16, got)
            assert torch.equal(got, expected)
            assert got[2, 318:].eq(-1).all()
            assert int(got[2, 0]) == int(tables[4, 2]) * 16 + 5

    return Check("prepare-batch", run)


CHECKS = [same_tokens(18, 300), same_tokens(9, 5000), distribution(), largest_word(), prepared()]

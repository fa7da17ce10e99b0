"""Both ways of every operation, numpy's and torch's, give the same; torch's is what a GPU runs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from camshaft.core.request import SamplingParams
from camshaft.core.sample import ops
from camshaft.core.sample.sampler import Sampler

# Few distinct values, so that ties are everywhere.
LOGITS = arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=st.integers(-3, 3).map(float)
)


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch):
    def run(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(ops, "_by_numpy", lambda _: False)
            return function(*arguments)

    return run


@settings(derandomize=True, max_examples=200, deadline=None)
@given(values=LOGITS, count=st.integers(1, 50))
def test_both_ways_agree(values: np.ndarray, count: int) -> None:
    logits, rows = torch.from_numpy(values), np.arange(len(values))
    with pytest.MonkeyPatch.context() as patch:
        ours = _everything(logits, count)
        patch.setattr(ops, "_by_numpy", lambda _: False)
        for got, expected in zip(_everything(logits, count), ours, strict=True):
            assert torch.equal(got, expected)
    assert ours[0].tolist() == values.argmax(1).tolist()
    assert ours[1].tolist() == (-np.sort(-values, axis=1))[:, :count].tolist()
    assert [values[r, i] for r, i in zip(rows, ours[4], strict=True)] == values[:, -1].tolist()


def _everything(logits: torch.Tensor, count: int) -> list[torch.Tensor]:
    ids = ops.largest_ids(logits, count)
    assert all(len(set(row)) == ids.shape[1] for row in ids.tolist())
    last = logits[:, -1]
    nth = (logits == last[:, None]).sum(-1) - 1
    return [
        ops.argmax(logits),
        ops.largest(logits, count),
        logits.gather(1, ids),  # ties may stand in any order
        ops.count_greater(logits, last),
        ops.nth_equal(logits, last, nth),
    ]


def test_the_sampler_draws_the_same_tokens_either_way(by_torch) -> None:
    def texts() -> list[list[int]]:
        sampler = Sampler(5000, (2,), seed=3)
        params = [
            SamplingParams(temperature=0.0),
            SamplingParams(seed=1),
            SamplingParams(top_p=0.9, seed=2),
            SamplingParams(top_k=300, min_p=0.001, repetition_penalty=1.2),
            SamplingParams(top_p=0.99999, temperature=3.0),
        ]
        for row, held in enumerate(params):
            sampler.add(row, held, np.arange(9, dtype=np.int32), np.empty(0, np.int32))
        generator = torch.Generator().manual_seed(0)
        logits = [torch.randn(5, 5000, generator=generator) * 2 for _ in range(8)]
        return [sampler.sample(step, np.arange(5))[0].tolist() for step in logits]

    assert texts() == by_torch(texts)

"""The device's sampler against the host's, whose rules are tested against their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.request import SamplingParams
from camshaft.core.sample.failures import FORBIDDEN, NOT_FINITE
from camshaft.core.sample.on_device import CHUNK, DeviceSampler
from camshaft.core.sample.sampler import Sampler
from camshaft.kernels.sample import Draws, sample

VOCAB, LENGTH, ROWS = 24, 40, 70
EOS = (6, 7)


class Device:
    """A sampler with the rows it reads, as the executor keeps them."""

    def __init__(self, seed: int = 0, vocab: int = VOCAB) -> None:
        self.known = torch.zeros((ROWS + 1, LENGTH), dtype=torch.int64)
        self.lengths = np.zeros(ROWS, dtype=np.int32)
        self.sent = 0
        self.sampler = DeviceSampler(vocab, EOS, seed, self.known, self.send)

    def send(self, array: np.ndarray) -> torch.Tensor:
        self.sent += 1
        return torch.from_numpy(array.copy())

    def add(self, row: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
        tokens = [*prompt, *output]
        self.known[row] = -1  # what lies behind a row's tokens must not be read
        self.known[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        self.lengths[row] = len(tokens)
        self.sampler.add(row, params, np.array(prompt, np.int32), np.array(output, np.int32))

    def step(self, logits: torch.Tensor, rows: np.ndarray) -> tuple[torch.Tensor, dict[int, Any]]:
        self.sampler.flush()
        contexts = self.lengths[rows]
        drawn = self.sampler.draw(logits, torch.from_numpy(rows), torch.from_numpy(contexts))
        special = self.sampler.special(rows)
        before = logits.clone()
        scored = self.sampler.finish(logits, drawn, rows, contexts, special)
        torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
        self.known[torch.from_numpy(rows).long(), torch.from_numpy(contexts).long()] = drawn.clamp_min(0)
        self.lengths[rows] += 1
        return drawn, {row: entry for part in scored for row, entry in part.entries().items()}


def logits_of(rows: int, seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


PARAMS = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB + 3), st.floats(-5, 5), max_size=3),
    allowed_token_ids=st.sampled_from([(), (), (0, 3, 5, 6, VOCAB - 1, VOCAB + 9), tuple(range(8, 20))]),
    bad_words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    min_tokens=st.sampled_from([0, 3, 9]),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=2).map(tuple),
    logprobs=st.sampled_from([None, 0, 3]),
)
HISTORY = st.lists(st.integers(0, 5), max_size=6)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(PARAMS, HISTORY, HISTORY), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_greedy_rows_with_edits_equal_the_hosts(rows: list[Any], seed: int) -> None:
    host, device = Sampler(VOCAB, EOS), Device()
    for row, (params, prompt, output) in enumerate(rows):
        host.add(row, params, np.array([1, *prompt], np.int32), np.array(output, np.int32))
        device.add(row, params, [1, *prompt], output)
    for step in range(6):
        order = np.random.default_rng(step).permutation(len(rows)).astype(np.int32)
        logits = logits_of(len(rows), seed * 10 + step)
        expected, told = host.sample(logits.clone(), order)
        drawn, scored = device.step(logits, order)
        assert drawn.tolist() == expected.tolist()
        assert scored.keys() == told.keys()
        for row, entry in told.items():
            assert scored[row].token_ids == entry.token_ids
            assert scored[row].rank == entry.rank
            assert scored[row].logprobs == pytest.approx(entry.logprobs, abs=1e-5)


SEEDED = SamplingParams(temperature=0.9, seed=42)


def text(device: Device, row: int, rows: list[int], steps: int, first: int = 0) -> list[int]:
    order = np.array(rows, dtype=np.int32)
    out = []
    for step in range(first, first + steps):
        table = logits_of(ROWS, 100 + step)
        drawn, _ = device.step(table[order], order)
        out.append(int(drawn[rows.index(row)]))
    return out


@pytest.mark.parametrize(
    "params",
    [SEEDED, replace(SEEDED, top_p=0.9), replace(SEEDED, top_k=4, seed=-3), replace(SEEDED, logprobs=1)],
)
def test_a_seeded_text_does_not_depend_on_company_or_evictions(params: SamplingParams) -> None:
    alone = Device(seed=1)
    alone.add(5, params, [3, 1], [])
    expected = text(alone, 5, [5], 10)
    crowd = Device(seed=9)
    others = [SamplingParams(), replace(params, seed=8), SamplingParams(temperature=0.0, min_tokens=4)]
    for row, other in enumerate(others):
        crowd.add(row, other, [2], [])
    crowd.add(5, params, [3, 1], [])
    begun = text(crowd, 5, [2, 5, 0, 1], 4)
    crowd.sampler.remove(5)
    crowd.add(5, params, [3, 1], begun)
    assert begun + text(crowd, 5, [5, 1], 6, first=4) == expected
    assert len(set(expected)) > 3


def test_a_draw_is_the_kernels_of_seed_and_position() -> None:
    device = Device()
    params = SamplingParams(temperature=0.7, top_k=9, top_p=0.8, min_p=0.02, seed=77)
    device.add(3, params, [1, 2], [4, 4, 4])
    logits = logits_of(1, 8)
    drawn, _ = device.step(logits, np.array([3], dtype=np.int32))
    one = torch.ones(1)
    draws = Draws(one * 0.7, one.int() * 9, one * 0.8, one * 0.02, one.long() * 77, one.long() * 3)
    assert drawn.tolist() == sample(logits, draws).tolist()


def test_unseeded_rows_differ_and_depend_on_the_engines_seed() -> None:
    def texts(seed: int) -> list[list[int]]:
        device = Device(seed)
        for row in range(2):
            device.add(row, SamplingParams(), [1], [])
        flat = torch.zeros(2, VOCAB)
        steps = [device.step(flat, np.array([0, 1], dtype=np.int32))[0].tolist() for _ in range(12)]
        return [list(column) for column in zip(*steps, strict=True)]

    first, again, other = texts(3), texts(3), texts(4)
    assert first == again
    assert first != other
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("params", "sent"),
    [
        (SamplingParams(temperature=0.0), 0),
        (SamplingParams(temperature=0.0, logprobs=2), 2),  # where the rows are, and who asked
        (SamplingParams(temperature=0.0, min_tokens=5), 6),  # where, rows and lengths twice, the edit's two
        (SamplingParams(temperature=0.0, logit_bias={3: 1.0}), 7),
        (SamplingParams(temperature=0.0, presence_penalty=0.5), 7),
        (SamplingParams(temperature=0.0, bad_words=((4,), (2, 4))), 10),
    ],
)
def test_everything_goes_to_the_device_by_the_copies_it_was_given(params: SamplingParams, sent: int) -> None:
    device = Device()
    device.add(0, params, [1], [2, 3])
    device.sampler.flush()
    before = device.sent
    assert before == 4  # the row, and its three columns
    device.step(logits_of(1, 0), np.zeros(1, dtype=np.int32))
    assert device.sent - before == sent


def test_more_special_rows_than_are_handled_at_once() -> None:
    count = 2 * CHUNK + 3
    host, device = Sampler(VOCAB, EOS), Device()
    params = SamplingParams(temperature=0.0, presence_penalty=5.0, logprobs=1)
    rows = np.arange(count, dtype=np.int32)
    for row in rows.tolist():
        host.add(row, params, np.array([1], np.int32), np.array([row % 5], np.int32))
        device.add(row, params, [1], [row % 5])
    for step in range(3):
        logits = logits_of(count, step)
        expected, told = host.sample(logits.clone(), rows)
        drawn, scored = device.step(logits, rows)
        assert drawn.tolist() == expected.tolist()
        assert scored.keys() == told.keys()


def test_rows_that_cannot_be_drawn_for_say_why() -> None:
    device = Device()
    everything = {token: -float("inf") for token in range(VOCAB)}
    for row, params in enumerate([SamplingParams(logit_bias=everything), SamplingParams(), SamplingParams()]):
        device.add(row, params, [1], [])
    logits = logits_of(3, 0)
    logits[1] = float("nan")
    drawn, _ = device.step(logits, np.arange(3, dtype=np.int32))
    assert drawn[:2].tolist() == [FORBIDDEN, NOT_FINITE]
    assert drawn[2] >= 0


def test_top_p_of_zero_takes_the_likeliest() -> None:
    device = Device()
    for row in range(20):
        device.add(row, SamplingParams(top_p=0.0, seed=row), [1], [])
    logits = logits_of(1, 2).repeat(20, 1)
    drawn, _ = device.step(logits, np.arange(20, dtype=np.int32))
    assert set(drawn.tolist()) == {int(logits[0].argmax())}

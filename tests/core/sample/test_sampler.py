"""The sampler against straightforward code, one row at a time, and against distributions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.request import SamplingParams
from camshaft.core.sample.sampler import Sampler

VOCAB = 1000
NONE = np.empty(0, dtype=np.int32)
GREEDY = SamplingParams(temperature=0.0)


def rng_logits(rows: int, seed: int = 0, vocab: int = VOCAB, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def one(
    params: SamplingParams, logits: torch.Tensor, prompt: Any = NONE, output: Any = NONE, eos: Any = ()
) -> int:
    sampler = Sampler(logits.shape[-1], eos)
    sampler.add(0, params, np.asarray(prompt, np.int32), np.asarray(output, np.int32))
    tokens, _ = sampler.sample(logits.clone().view(1, -1), [0])
    return int(tokens[0])


def reference_logits(params: SamplingParams, logits, prompt, output, eos=()) -> np.ndarray:
    """What the greedy choice sees: every rule written out as its definition says."""
    x = np.asarray(logits, dtype=np.float64).copy()
    output = list(output)
    if params.allowed_token_ids:
        x[[t for t in range(len(x)) if t not in params.allowed_token_ids]] = -np.inf
    for word in params.bad_words:
        n = len(word) - 1
        if n <= len(output) and tuple(output[len(output) - n :]) == word[:-1]:
            x[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        x[[*eos, *params.stop_token_ids]] = -np.inf
    for token, bias in params.logit_bias.items():
        x[token] += bias
    for token in {*prompt, *output}:
        x[token] = (
            x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
        )
    for token in set(output):
        x[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    return x


def reference_probabilities(params: SamplingParams, x: np.ndarray) -> np.ndarray:
    """The distribution that the filters leave, by sorting the whole vocabulary."""
    p = np.exp((x - x.max()) / params.temperature)
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if params.top_k > 0:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    if params.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        drop = order[before >= params.top_p]
        p[drop[drop != order[0]]] = 0
    return p / p.sum()


def frequencies(params: SamplingParams, logits: torch.Tensor, draws: int) -> np.ndarray:
    sampler = Sampler(logits.shape[-1], seed=7)
    rows = np.arange(256)
    for row in rows:
        sampler.add(int(row), params, NONE, NONE)
    counts = np.zeros(logits.shape[-1])
    for _ in range(draws // len(rows)):
        tokens, _ = sampler.sample(logits.repeat(len(rows), 1), rows)
        counts += np.bincount(tokens.numpy(), minlength=len(counts))
    return counts


PARAMS = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(0, 19), st.floats(-5, 5), max_size=3),
    allowed_token_ids=st.sampled_from([(), (), (0, 3, 5, 6, 12, 19), tuple(range(8, 20))]),
    bad_words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    min_tokens=st.sampled_from([0, 3, 9]),
    stop_token_ids=st.lists(st.integers(0, 19), max_size=2).map(tuple),
)
HISTORY = st.lists(st.integers(0, 5), max_size=6)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(PARAMS, HISTORY, HISTORY), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_greedy_rows_follow_the_definitions_step_after_step(rows, seed: int) -> None:
    """Every rule at once, each row with its own parameters, over several steps of a mixed batch."""
    eos = (6, 7)
    sampler = Sampler(20, eos)
    outputs = [list(output) for _, _, output in rows]
    for row, (params, prompt, output) in enumerate(rows):
        sampler.add(row, params, np.array(prompt, np.int32), np.array(output, np.int32))
    for step in range(6):
        logits = rng_logits(len(rows), seed * 10 + step, vocab=20)
        order = np.random.default_rng(step).permutation(len(rows))
        expected = [reference_logits(rows[r][0], logits[r], rows[r][1], outputs[r], eos) for r in order]
        tokens, _ = sampler.sample(logits[order].clone(), order)
        for token, row, x in zip(tokens.tolist(), order, expected, strict=True):
            assert np.isclose(x[token], x.max(), rtol=1e-5), (row, rows[row][0])
            outputs[row].append(token)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 1},
        {"top_k": 20},
        {"top_k": 400},
        {"top_k": VOCAB + 5},
        {"top_k": -1},
        {"top_p": 0.3},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 1e-9},
        {"top_p": 0.0},
        {"min_p": 0.05},
        {"min_p": 1e-4},
        {"min_p": 1.0},
        {"top_k": 50, "top_p": 0.8},
        {"top_k": 500, "top_p": 0.95},
        {"min_p": 0.02, "top_p": 0.7, "top_k": 30, "temperature": 1.7},
        {"min_p": 0.001, "top_p": 0.97, "temperature": 1.7},
    ],
)
def test_distribution_is_the_references(changes: dict) -> None:
    """Nothing outside the support is ever drawn, and a chi-squared over it is unsuspicious."""
    params = replace(SamplingParams(), **changes)
    logits = rng_logits(1, seed=3)
    expected = reference_probabilities(params, logits[0].numpy().astype(np.float64))
    draws = 25_600
    counts = frequencies(params, logits, draws)
    assert counts[expected == 0].sum() == 0
    big = expected * draws >= 5
    observed = np.append(counts[big], counts[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum()) * draws
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic, freedom = ((observed - wanted) ** 2 / wanted).sum(), max(len(wanted) - 1, 1)
    # Beyond five standard deviations of the chi-squared distribution; the seed is fixed.
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


def test_the_exact_reference_token_for_every_uniform() -> None:
    """The draw walks the reference's list, most likely first, for numbers across the whole range."""
    from camshaft.core.sample.nucleus import Filters, draw_filtered

    logits = rng_logits(1, seed=5)
    for k, p, m in (
        (0, 0.9, 0.0),
        (40, 1.0, 0.0),
        (300, 0.95, 0.0),
        (0, 1.0, 1e-3),
        (0, 0.99, 0.01),
        (0, 0.5, 0.0),
    ):
        params = SamplingParams(temperature=0.8, top_k=k, top_p=p, min_p=m)
        expected = reference_probabilities(params, logits[0].numpy().astype(np.float64))
        order = np.argsort(-logits[0].numpy(), kind="stable")
        steps = np.cumsum(expected[order])
        uniform = (np.arange(200) + 0.5) / 200
        many = Filters(
            torch.full((200,), 0.8),
            torch.full((200,), k),
            torch.full((200,), p).double(),
            torch.full((200,), m),
        )
        got = draw_filtered(logits.repeat(200, 1), many, torch.from_numpy(uniform)).numpy()
        wanted = order[np.searchsorted(steps, uniform, side="right")]
        near = np.abs(steps[np.searchsorted(steps, uniform)] - uniform) < 1e-5
        assert ((got == wanted) | near).all()
        assert near.sum() < 5


def test_ties_are_drawn_alike_and_deterministically() -> None:
    """A flat row: every token in the nucleus is possible, and equal numbers give equal tokens."""
    logits = torch.zeros(1, 600)
    logits[0, 300:] = -50.0
    counts = frequencies(SamplingParams(top_p=0.5), logits, 25_600)
    assert (counts > 0).sum() == 150  # half of 300 equal tokens, the first by index
    assert set(np.flatnonzero(counts)) == set(range(150))
    assert counts[:150].max() < 300


def _texts(
    add: Callable[[Sampler], None], row: int, steps: int, rows: list[int], vocab: int = VOCAB
) -> list[int]:
    sampler = Sampler(vocab, seed=1)
    add(sampler)
    out = []
    for step in range(steps):
        table = rng_logits(64, 100 + step, vocab)
        tokens, _ = sampler.sample(table[rows].clone(), rows)
        out.append(int(tokens[rows.index(row)]))
    return out


SEEDED = SamplingParams(temperature=0.9, seed=42)


@pytest.mark.parametrize("params", [SEEDED, replace(SEEDED, top_p=0.9), replace(SEEDED, top_k=400, seed=-3)])
def test_seeded_text_does_not_depend_on_company(params: SamplingParams) -> None:
    def alone(sampler: Sampler) -> None:
        sampler.add(5, params, NONE, NONE)

    def crowded(sampler: Sampler) -> None:
        others = [SamplingParams(), GREEDY, replace(params, seed=9), SamplingParams(top_k=3, logprobs=2)]
        for row, other in enumerate([*others, SamplingParams(min_p=0.1, repetition_penalty=1.1)]):
            sampler.add(row, other, NONE, NONE)
        sampler.add(5, params, NONE, NONE)

    expected = _texts(alone, 5, 12, [5])
    assert _texts(crowded, 5, 12, [3, 5, 0, 1, 4, 2]) == expected
    assert len(set(expected)) > 6
    assert _texts(lambda s: s.add(5, replace(params, seed=43), NONE, NONE), 5, 12, [5]) != expected


def test_seeded_text_survives_an_eviction() -> None:
    whole = _texts(lambda s: s.add(5, SEEDED, NONE, NONE), 5, 10, [5])
    sampler = Sampler(VOCAB, seed=99)
    sampler.add(0, SEEDED, NONE, np.array(whole[:4], np.int32))
    again = [int(sampler.sample(rng_logits(64, 104 + i)[[5]].clone(), [0])[0]) for i in range(6)]
    assert whole[:4] + again == whole


def test_unseeded_draws_are_not_moved_by_seeded_or_greedy_company() -> None:
    def plain(sampler: Sampler) -> None:
        sampler.add(2, SamplingParams(), NONE, NONE)

    def mixed(sampler: Sampler) -> None:
        sampler.add(1, SEEDED, NONE, NONE)
        sampler.add(2, SamplingParams(), NONE, NONE)
        sampler.add(3, GREEDY, NONE, NONE)

    assert _texts(plain, 2, 10, [2]) == _texts(mixed, 2, 10, [1, 2, 3])


def test_eviction_restores_penalties_and_bad_words() -> None:
    params = SamplingParams(
        temperature=0.0, frequency_penalty=1.0, repetition_penalty=1.2, bad_words=((3, 4), (5,), (1, 2, 0))
    )
    prompt, output = np.array([1, 2], np.int32), [int(x) for x in np.random.default_rng(0).integers(0, 8, 20)]
    running = Sampler(20)
    running.add(0, params, prompt, NONE)
    for i, token in enumerate(output):
        logits = torch.full((1, 20), -1e4)
        logits[0, token] = 1e4  # forces the token, whatever is penalised
        restored = Sampler(20)
        restored.add(3, params, prompt, np.array(output[:i], np.int32))
        probe = rng_logits(1, i, 20)
        assert restored.sample(probe.clone(), [3])[0] == one(params, probe, prompt, output[:i])
        running.sample(logits, [0])
    if output[-1] != 5:
        probe = rng_logits(1, 77, 20)
        assert int(running.sample(probe.clone(), [0])[0]) == one(params, probe, prompt, output)


def test_min_tokens_ends_when_reached() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(8,), ignore_eos=True)
    sampler = Sampler(10, (9,))
    sampler.add(0, params, NONE, NONE)
    logits = torch.arange(10.0).view(1, -1)
    assert [int(sampler.sample(logits.clone(), [0])[0]) for _ in range(4)] == [7, 7, 9, 9]
    assert one(params, logits, output=[1], eos=(9,)) == 7
    assert one(params, logits, output=[1, 1], eos=(9,)) == 9


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    params = SamplingParams(
        temperature=0.0,
        min_tokens=1,
        stop_token_ids=(50, -1),
        bad_words=((77,), (1, 99)),
        logit_bias={64: 1.0},
    )
    assert one(params, torch.arange(10.0)) == 9


def test_rows_can_be_reused_and_removed() -> None:
    sampler = Sampler(10)
    sampler.add(0, SamplingParams(temperature=0.0, logit_bias={1: 100.0}, logprobs=1), NONE, NONE)
    sampler.remove(0)
    sampler.remove(12345)
    sampler.add(0, GREEDY, NONE, NONE)
    tokens, logprobs = sampler.sample(torch.arange(10.0).view(1, -1), [0])
    assert tokens.tolist() == [9]
    assert logprobs == {}
    sampler.add(500, SamplingParams(temperature=0.0, logit_bias={2: 100.0}), NONE, NONE)
    tokens, _ = sampler.sample(torch.arange(10.0).repeat(2, 1), np.array([500, 0], np.int32))
    assert tokens.tolist() == [2, 9]
    assert tokens.dtype == torch.int64


def test_an_unusable_row_fails_alone() -> None:
    sampler = Sampler(4)
    everything = tuple((i,) for i in range(4))
    sampler.add(0, SamplingParams(), NONE, NONE)
    sampler.add(1, SamplingParams(top_p=0.5), NONE, NONE)
    sampler.add(2, SamplingParams(temperature=0.0, bad_words=everything), NONE, NONE)
    sampler.add(3, GREEDY, NONE, NONE)
    logits = torch.ones(4, 4)
    logits[0, 2] = float("nan")
    logits[1, 0] = float("inf")
    logits[3, 1] = 5.0
    tokens, _ = sampler.sample(logits, [0, 1, 2, 3])
    assert set(sampler.failed) == {0, 1, 2}
    assert "not finite" in sampler.failed[0]
    assert "not finite" in sampler.failed[1]
    assert "forbidden" in sampler.failed[2]
    assert tokens[3] == 1
    sampler.sample(torch.ones(1, 4), [3])
    assert sampler.failed == {}


EXTREMES = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 5e-324, 1e-45, 1e-30, 9e-6, 1e-5, 1e-3, 1.0, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2**31 - 1]),
    top_p=st.sampled_from([5e-324, 1e-30, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 5e-324, 1e-30, 1.0]),
    repetition_penalty=st.sampled_from([0.001, 1.0, 100.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, 19), st.sampled_from([-100.0, 5e-324, 100.0]), max_size=20),
    seed=st.sampled_from([None, 0, 2**63 - 1]),
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(rows=st.lists(EXTREMES, min_size=1, max_size=4), scale=st.sampled_from([0.0, 1e-30, 2.0, 1e4]))
def test_every_number_a_client_may_send_gives_a_token(rows: list[SamplingParams], scale: float) -> None:
    sampler = Sampler(20)
    for row, params in enumerate(rows):
        sampler.add(row, params, np.arange(5, dtype=np.int32), np.full(40, 7, np.int32))
    tokens, _ = sampler.sample(rng_logits(len(rows), 1, 20, scale), np.arange(len(rows)))
    assert not sampler.failed
    assert all(0 <= token < 20 for token in tokens.tolist())


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-6, 1e-5])
def test_a_temperature_next_to_0_is_greedy(temperature: float) -> None:
    logits = rng_logits(1, 11)
    assert one(SamplingParams(temperature=temperature), logits) == int(logits.argmax())


def test_empty_batch() -> None:
    tokens, logprobs = Sampler(10).sample(torch.empty(0, 10), [])
    assert tokens.shape == (0,)
    assert logprobs == {}


def test_logits_of_inference_mode_are_accepted() -> None:
    sampler = Sampler(10)
    sampler.add(0, SamplingParams(temperature=0.0, logit_bias={1: 100.0}), NONE, NONE)
    with torch.inference_mode():
        logits = torch.zeros(1, 10) * 2
    assert sampler.sample(logits, [0])[0].tolist() == [1]

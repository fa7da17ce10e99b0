"""A load is a function of its file: what arrives, how long it is, what it shares."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import ConfigError
from camshaft.core.workload import (
    Segment,
    Workload,
    WorkloadRequest,
    load_workload,
    segment_tokens,
    workload_names,
)


def make(**keys: object) -> Workload:
    base = {
        "arrival": {"kind": "closed", "concurrency": 4, "requests": 50},
        "input_tokens": {"uniform": [10, 90]},
        "output_tokens": {"fixed": 7},
    }
    return load_workload({**base, **keys})


def requests(**keys: object) -> list[WorkloadRequest]:
    return list(make(**keys).requests())


LENGTHS = st.one_of(
    st.integers(1, 5000),
    st.tuples(st.integers(1, 500), st.integers(0, 500)).map(lambda p: {"uniform": [p[0], p[0] + p[1]]}),
    st.tuples(st.floats(1, 2000), st.floats(0, 2000)).map(lambda p: {"normal": list(p)}),
    st.tuples(st.floats(1, 2000), st.floats(0, 2000)).map(lambda p: {"lognormal": list(p), "max": 4000}),
    st.lists(st.integers(1, 3000), min_size=1).map(lambda v: {"empirical": v}),
)
ARRIVALS = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("closed"), "concurrency": st.integers(1, 9), "requests": st.integers(1, 40)}
    ),
    st.fixed_dictionaries(
        {"kind": st.just("poisson"), "rate": st.floats(0.01, 100), "requests": st.integers(1, 40)}
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("bursts"),
            "size": st.integers(1, 9),
            "interval_s": st.floats(0.1, 9),
            "requests": st.integers(1, 40),
            "rate": st.floats(0, 5),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("sessions"),
            "sessions": st.integers(1, 8),
            "turns": st.integers(1, 6),
            "think_s": st.floats(0, 3),
            "rate": st.floats(0.1, 9),
            "max_context_tokens": st.integers(2, 5000),
        }
    ),
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    ARRIVALS,
    LENGTHS,
    LENGTHS,
    st.integers(0, 300),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_every_load_is_consistent_and_repeats(
    arrival: dict[str, object], inputs: object, outputs: object, shared: int, groups: int, seed: int
) -> None:
    workload = make(
        arrival=arrival,
        input_tokens=inputs,
        output_tokens=outputs,
        shared_prefix_tokens=shared,
        shared_prefix_groups=groups,
        seed=seed,
    )
    rows = list(workload.requests())
    assert rows == list(workload.requests())
    assert len(rows) == workload.count
    assert [row.index for row in rows] == list(range(len(rows)))
    times = [row.arrival_s for row in rows if row.arrival_s is not None]
    assert all(a <= b for a, b in pairwise(times))
    for row in rows:
        assert row.input_tokens >= 1
        assert row.output_tokens >= 1
        assert sum(segment.tokens for segment in row.segments) == row.input_tokens
        assert all(segment.tokens > 0 for segment in row.segments)
        assert row.after < row.index


def test_another_seed_gives_another_load_and_the_streams_are_independent() -> None:
    first, second = requests(), requests(seed=1)
    assert [r.input_tokens for r in first] != [r.input_tokens for r in second]
    longer = requests(output_tokens={"uniform": [1, 100]})
    assert [r.input_tokens for r in longer] == [r.input_tokens for r in first]


def test_the_distributions_have_the_moments_they_are_given() -> None:
    arrival = {"kind": "closed", "concurrency": 1, "requests": 40_000}
    for kind in ("normal", "lognormal"):
        drawn = [
            r.input_tokens for r in requests(arrival=arrival, input_tokens={kind: {"mean": 1000, "std": 200}})
        ]
        assert np.mean(drawn) == pytest.approx(1000, rel=0.01)
        assert np.std(drawn) == pytest.approx(200, rel=0.03)
    weighted = {"empirical": {"values": [10, 20], "weights": [3, 1]}}
    drawn = [r.input_tokens for r in requests(arrival=arrival, input_tokens=weighted)]
    assert drawn.count(10) / len(drawn) == pytest.approx(0.75, abs=0.01)
    drawn = [r.input_tokens for r in requests(arrival=arrival, input_tokens={"uniform": [3, 5]})]
    assert set(drawn) == {3, 4, 5}


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness_they_are_given(burstiness: float) -> None:
    arrival = {"kind": "poisson", "rate": 5, "requests": 40_000, "burstiness": burstiness}
    gaps = np.diff([r.arrival_s for r in requests(arrival=arrival)])  # type: ignore[arg-type]
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.06)


def test_bursts_arrive_together() -> None:
    rows = requests(arrival={"kind": "bursts", "size": 4, "interval_s": 2, "requests": 10})
    assert [r.arrival_s for r in rows] == [0, 0, 0, 0, 2, 2, 2, 2, 4, 4]


def test_a_shared_prefix_is_shared_in_its_group_and_nowhere_else() -> None:
    rows = requests(input_tokens={"fixed": 64}, shared_prefix_tokens=48, shared_prefix_groups=2)
    prompts = [segment_tokens(row.segments, 1000) for row in rows]
    heads = {tuple(prompt[:48]) for prompt in prompts}
    assert len(heads) == 2
    assert len({tuple(prompt[48:]) for prompt in prompts}) == len(rows)


def test_classes_share_the_workloads_prefix_but_not_their_own() -> None:
    mix = [{"input_tokens": 20}, {"input_tokens": 30}, {"input_tokens": 40, "shared_prefix_tokens": 10}]
    rows = requests(mix=mix, shared_prefix_tokens=10)
    heads = {row.input_tokens: row.segments[0].content for row in rows}
    assert heads[20] == heads[30] != heads[40]


def test_a_mix_carries_tenants_priorities_and_weights() -> None:
    arrival = {"kind": "closed", "concurrency": 1, "requests": 8000}
    mix = [{"weight": 3, "tenant": "a"}, {"tenant": "b", "priority": 2, "deadline_ms": 50}]
    rows = requests(arrival=arrival, mix=mix)
    assert sum(r.tenant == "a" for r in rows) / len(rows) == pytest.approx(0.75, abs=0.02)
    assert {(r.tenant, r.priority, r.deadline_ms) for r in rows} == {("a", 0, None), ("b", 2, 50)}


def test_a_sessions_prompt_is_the_last_one_its_answer_and_more() -> None:
    arrival = {"kind": "sessions", "sessions": 3, "turns": 4, "rate": 1, "think_s": 0.5}
    rows = requests(arrival=arrival, shared_prefix_tokens=25)
    for last, row in pairwise(rows):
        if row.turn == 0:
            assert row.arrival_s is not None
            assert row.after == -1
            continue
        assert (row.after, row.arrival_s, row.think_s) == (last.index, None, 0.5)
        assert row.segments[: len(last.segments) + 1] == (
            *last.segments,
            Segment(last.answer, last.output_tokens),
        )
    assert len({row.segments[0] for row in rows}) == 1  # the common prompt


def test_a_session_ends_before_its_context_is_full() -> None:
    arrival = {
        "kind": "sessions",
        "sessions": 5,
        "turns": 50,
        "concurrency": 2,
        "max_context_tokens": 400,
    }
    rows = requests(arrival=arrival)
    assert max(r.input_tokens + r.output_tokens for r in rows) <= 400
    assert {r.session for r in rows} == set(range(5))


@settings(max_examples=50, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**66), st.integers(1, 50)), min_size=1, max_size=6),
    st.integers(2, 100_000),
    st.integers(0, 9),
)
def test_equal_leading_segments_are_equal_leading_tokens(
    parts: list[tuple[int, int]], vocab: int, seed: int
) -> None:
    segments = tuple(Segment(*part) for part in parts)
    tokens = segment_tokens(segments, vocab, seed)
    assert len(tokens) == sum(part[1] for part in parts)
    assert tokens.min() >= 0
    assert tokens.max() < vocab
    cut = (*segments[:-1], Segment(segments[-1].content, 1))
    assert np.array_equal(segment_tokens(cut, vocab, seed), tokens[: len(segment_tokens(cut, vocab, seed))])


def test_contents_of_different_makings_never_give_the_same_tokens() -> None:
    seen = {
        tuple(segment_tokens((Segment(making << 64 | number, 8),), 50_000))
        for making in range(4)
        for number in range(5000)
    }
    assert len(seen) == 20_000


def test_prompts_are_the_same_in_another_process() -> None:
    code = (
        "from camshaft.core.workload import *;"
        "print(segment_tokens((Segment(5 << 64 | 7, 6),), 50000, 3).tolist())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(segment_tokens((Segment(5 << 64 | 7, 6),), 50_000, 3).tolist())


def test_the_same_requests_at_another_rate_or_concurrency() -> None:
    workload = make()
    faster = workload.at_rate(8)
    assert [r.input_tokens for r in faster.requests()] == [r.input_tokens for r in workload.requests()]
    assert faster.concurrency is None
    assert faster.at_concurrency(3).concurrency == 3
    assert faster.first(5).count == 5
    with pytest.raises(ConfigError, match="at least 1"):
        faster.at_concurrency(2).first(0)


@pytest.mark.parametrize("name", workload_names())
def test_every_preset_loads_and_says_what_it_is(name: str) -> None:
    workload = load_workload(name)
    assert workload.shape.description
    summary = workload.summary()
    assert summary.requests >= 24
    assert (summary.rate is None) == (summary.concurrency is not None)


def test_the_chat_and_code_presets_have_the_lengths_they_claim() -> None:
    for name, mean_in, mean_out in (("chat", 1150, 259), ("code", 2006, 28)):
        summary = load_workload(name).summary()
        assert summary.input_tokens_mean == pytest.approx(mean_in, rel=0.1)
        assert summary.output_tokens_mean == pytest.approx(mean_out, rel=0.15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival: {kind: poison}\n", r"w.yaml:1:11: arrival.kind: no kind 'poison'.* mean poisson\?"),
        ("arrival: poisson\n", r"w.yaml:1:1: arrival: a mapping is needed \(given: 'poisson'\)"),
        ("arrival: {kind: closed, requests: 3}\n", "w.yaml:1:1: arrival.concurrency: is missing"),
        (
            "arrival: {kind: closed, concurrency: 1, requests: 3}\ninput_tokens: many\noutput_tokens: 5\n",
            "w.yaml:2:1: input_tokens: a number or a distribution is needed",
        ),
        (
            "arrival:\n  kind: closed\n  concurency: 3\n  requests: 3\n",
            r"w.yaml:3:3: arrival.concurency: unknown key; did you mean concurrency\?",
        ),
        (
            "arrival: {kind: closed, concurrency: 0, requests: 3}\n",
            r"arrival.concurrency: .*at least|greater",
        ),
        ("arrival: {kind: closed, concurrency: 1, requests: 3}\n", "input_tokens is missing"),
        (
            "arrival: {kind: closed, concurrency: 1, requests: 3}\ninput_tokens: 5\noutput_tokens:\n  nomal: [1, 2]\n",
            r"w.yaml:4:3: output_tokens.nomal: unknown key; did you mean normal\?",
        ),
        (
            "arrival: {kind: closed, concurrency: 1, requests: 3}\noutput_tokens: 5\ninput_tokens: {uniform: [9, 3]}\n",
            r"w.yaml:3:\d+: input_tokens: uniform: \[low, high\]",
        ),
        (
            "arrival: {kind: closed, concurrency: 1, requests: 3}\noutput_tokens: true\ninput_tokens: 3\n",
            "output_tokens: a number",
        ),
        ("arrival: {kind: sessions, sessions: 2, turns: 3}\n", "exactly one of rate and concurrency"),
        ("arrival: {kind: trace, file: nothing.csv}\n", r"w.yaml:1:\d+: arrival.file: .*no such file"),
        ("arrival: 3\narrival: 4\n", r"w.yaml:2:1: arrival: given twice; first on line 1"),
        ("- a\n", "w.yaml:1:1: a mapping"),
        ("a: [\n", r"w.yaml:2:1: not valid YAML"),
        ("", "arrival: is missing"),
    ],
)
def test_a_wrong_workload_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_workload(file)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean chat\? \(presets: agents, chat"):
        load_workload("chatt")


def test_workloads_need_no_torch() -> None:
    code = "import sys, camshaft.core.workload; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_arrivals_keep_the_rate_that_was_asked_for(rate: float) -> None:
    times = [request.arrival_s or 0.0 for request in load_workload("chat").at_rate(rate).requests()]
    assert times[0] == 0.0
    assert (len(times) - 1) / times[-1] == pytest.approx(rate)


def test_a_rate_or_a_number_of_clients_that_nobody_can_play_is_refused() -> None:
    workload = load_workload("chat")
    for turn in (lambda: workload.at_rate(1e12), lambda: workload.at_concurrency(99_999_999_999)):
        with pytest.raises(ConfigError, match="at most"):
            turn()


def test_the_rate_of_conversations_is_that_of_their_starts() -> None:
    arrival = {"kind": "sessions", "sessions": 400, "turns": 5, "rate": 2, "think_s": 0.5}
    workload = load_workload({"arrival": arrival, "input_tokens": 20, "output_tokens": 4})
    told = workload.summary()
    assert (told.requests, told.arrivals, workload.arrives) == (2000, 400, "sessions")
    assert told.rate == pytest.approx(2, rel=0.2)

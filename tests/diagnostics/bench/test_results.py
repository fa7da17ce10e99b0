"""Figures are the ones their names promise."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from camshaft.core.errors import ConfigError
from camshaft.diagnostics.bench.gaps import TokenTimes
from camshaft.diagnostics.bench.policies import Comparison, PolicyResult
from camshaft.diagnostics.bench.render import findings, print_result
from camshaft.diagnostics.results import (
    Distribution,
    RequestRecord,
    Result,
    Targets,
    parse_targets,
    summarise,
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 5)), min_size=1, max_size=60))
def test_a_weighted_distribution_is_the_one_of_the_repeated_values(pairs: list[tuple[float, int]]) -> None:
    values, weights = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    plain, weighted = Distribution.of(np.repeat(values, weights)), Distribution.of(values, weights)
    assert plain is not None
    assert weighted is not None
    assert weighted.mean == pytest.approx(plain.mean)
    assert (weighted.p50, weighted.p90, weighted.p99, weighted.max) == (
        plain.p50,
        plain.p90,
        plain.p99,
        plain.max,
    )


def test_percentiles_are_the_nearest_rank() -> None:
    spread = Distribution.of(list(range(1, 101)))
    assert spread == Distribution(50.5, 50, 90, 99, 100)
    assert Distribution.of([]) is None


def test_a_record_counts_from_its_arrival() -> None:
    record = RequestRecord(0, 1.0, 10, 5, first_token_s=1.5, finished_s=2.3)
    assert record.ttft_ms == pytest.approx(500)
    assert record.tpot_ms == pytest.approx(200)
    assert record.e2e_ms == pytest.approx(1300)
    assert RequestRecord(0, 1.0, 10, 1, 1.5, 1.5).tpot_ms is None


def test_goodput_counts_who_met_every_target_and_failures_never() -> None:
    rows = [
        RequestRecord(0, 0.0, 10, 10, 0.1, 1.0, itl_p99_ms=10),
        RequestRecord(1, 0.0, 10, 20, 0.9, 2.0, itl_p99_ms=10),
        RequestRecord(2, 0.0, 10, 30, 0.1, 2.0, itl_p99_ms=90),
        RequestRecord(3, 0.0, 10, error="timeout"),
        RequestRecord(4, 0.0, 10),
    ]
    result = summarise(rows, np.array([10.0, 90.0]), targets=Targets(ttft_ms=500, itl_ms=50))
    assert (result.completed, result.failed) == (3, 2)
    assert result.goodput_requests_per_s == pytest.approx(0.5)
    assert result.goodput_output_tokens_per_s == pytest.approx(5)
    assert result.throughput_output_tokens_per_s == pytest.approx(30)
    assert result.errors == {"timeout": 1, "unfinished": 1}
    assert json.loads(json.dumps(result.to_dict()))["targets"]["ttft_ms"] == 500
    assert not result.saturated


def test_a_queue_that_does_not_drain_is_saturated() -> None:
    late = summarise([RequestRecord(0, 0.0, 10, 2, 6.0, 7.0)], np.array([1.0]))
    assert late.saturated
    assert "longer than 5 s on average" in _printed(late)
    early = replace(summarise([RequestRecord(0, 0.0, 10, 2, 2.39, 7.0)], np.array([1.0])), saturated=True)
    assert "longer than 5 s" not in _printed(early)
    assert "the queue grows" in _printed(early)


def test_no_figure_is_cut_in_a_narrow_terminal() -> None:
    late = summarise([RequestRecord(0, 0.0, 10, 2, 16.4321, 17.0)], np.array([1.0]))
    for width in (30, 40, 60, 80):
        shown = _printed(late, width)
        assert "\u2026" not in shown
        assert shown.count("16,432.1") == 5


def test_a_policy_that_played_fewer_requests_is_told() -> None:
    few = PolicyResult("naive", 8, summarise([RequestRecord(0, 0.0, 10, 2, 0.1, 0.2)], np.array([100.0])), 1)
    told = "\n".join(findings(Comparison("mixed", (few, replace(few, policy="static", requests=64)))))
    assert "naive plays the first 8 requests" in told
    assert "static plays" not in told


def _printed(result: Result, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_result(console, result, "a run")
    return console.export_text()


def test_a_servers_own_words_are_printed_as_they_are() -> None:
    failed = summarise([RequestRecord(0, 0.0, 10, error="http 500")], np.array([]))
    console = Console(width=200, record=True, file=io.StringIO())
    print_result(console, failed, "a load on [/x] ([b]m)", {"http 500": "in [/usr/lib/a.py] of [bold] type"})
    told = console.export_text()
    assert "a load on [/x] ([b]m)" in told
    assert "1 failed: http 500 in [/usr/lib/a.py] of [bold] type" in told


def test_targets_are_read_with_their_units() -> None:
    assert parse_targets("ttft=1.5s,itl=50ms") == Targets(ttft_ms=1500, itl_ms=50)
    assert parse_targets("ttft_s=2, tpot_ms=30ms, e2e=9s") == Targets(ttft_ms=2000, tpot_ms=30, e2e_ms=9000)
    assert not parse_targets(None).any
    for bad in ("ttft", "ttft=fast", "latency=3", "itl=0ms"):
        with pytest.raises(ConfigError, match="ttft, tpot, itl or e2e"):
            parse_targets(bad)
    with pytest.raises(ConfigError, match=r"unit is missing; write ttft=0\.5s or"):
        parse_targets("itl=50ms, ttft=0.5")


def test_token_times_keep_every_gap_and_each_requests_own() -> None:
    times = TokenTimes()
    times.grow(3)
    times.record(np.array([0, 1]), 1.0)
    times.record(np.array([0, 1, 2]), 1.25)
    times.record(np.array([0]), 2.25)
    assert sorted(times.gaps_ms()) == [250, 250, 1000]
    assert times.tokens[:3].tolist() == [3, 2, 1]
    assert times.p99_by_request()[:2].tolist() == [1000, 250]
    assert np.isnan(times.p99_by_request()[2])

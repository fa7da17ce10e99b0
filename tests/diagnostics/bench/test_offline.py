"""A load played in-process is measured exactly: the clock is the engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.core.engine import Engine
from camshaft.core.workload import Workload, load_workload
from camshaft.diagnostics.bench.offline import OfflineRun, drive, warm_up
from camshaft.diagnostics.bench.overhead import measure
from camshaft.diagnostics.bench.policies import CLASSIC, Comparison, PolicyResult, compare, describe
from camshaft.diagnostics.results import RequestRecord, Targets, summarise


def load(**keys: Any) -> Workload:
    base = {
        "arrival": {"kind": "closed", "concurrency": 4, "requests": 12},
        "input_tokens": {"fixed": 100},
        "output_tokens": {"fixed": 5},
    }
    return load_workload({**base, **keys})


def play(bench: Any, workload: Workload, **keys: Any) -> OfflineRun:
    engine = bench.engine(**keys)
    engine.open()
    run = drive(engine, workload, wait=bench.clock.wait)
    engine.check_integrity()
    assert not engine.has_work
    return run


def test_one_request_takes_the_time_its_steps_take(bench: Any) -> None:
    run = play(bench, load(arrival={"kind": "closed", "concurrency": 1, "requests": 1}))
    record = run.records[0]
    assert record.ttft_ms == pytest.approx(10 + 0.1 * 100)
    assert record.tpot_ms == pytest.approx(10)
    assert record.e2e_ms == pytest.approx(60)
    assert run.times.gaps_ms() == pytest.approx([10.0] * 4)
    result = run.result(Targets(ttft_ms=19, itl_ms=11))
    assert result.goodput_requests_per_s == 0
    assert run.result(Targets(ttft_ms=21, itl_ms=11)).goodput_requests_per_s == pytest.approx(1 / 0.06)
    assert result.throughput_output_tokens_per_s == pytest.approx(5 / 0.06)
    assert result.throughput_total_tokens_per_s == pytest.approx(105 / 0.06)


def test_every_planned_token_is_counted(bench: Any) -> None:
    workload = load(input_tokens={"uniform": [10, 300]}, output_tokens={"uniform": [1, 40]})
    run = play(bench, workload)
    planned = {request.index: request.output_tokens for request in workload.requests()}
    assert {record.index: record.output_tokens for record in run.records} == planned
    assert len(run.times.gaps_ms()) == sum(planned.values()) - len(planned)
    assert run.result().completed == 12
    assert run.kv.peak_used > 0
    assert 0 <= run.kv.waste < 1


def test_a_closed_loop_keeps_so_many_requests_and_no_more(bench: Any) -> None:
    play(bench, load())
    assert max(len(plan.rows) for plan in bench.executors[0].plans) == 4


def test_requests_arrive_by_the_clock(bench: Any) -> None:
    run = play(bench, load(arrival={"kind": "bursts", "size": 2, "interval_s": 5, "requests": 6}))
    assert [record.arrival_s for record in run.records] == [0, 0, 5, 5, 10, 10]
    assert run.result().duration_s == pytest.approx(10 + 0.01 + 0.1 * 0.2 + 4 * 0.01, rel=1e-3)
    assert all(record.ttft_ms is not None and record.ttft_ms < 50 for record in run.records)


def test_a_session_hears_its_real_answers_and_finds_them_in_the_cache(bench: Any) -> None:
    arrival = {"kind": "sessions", "sessions": 2, "turns": 3, "concurrency": 1, "think_s": 2}
    run = play(bench, load(arrival=arrival, shared_prefix_tokens=32))
    prompts = bench.executors[0].prompts
    for turn in (1, 2, 4, 5):
        before, now = prompts[f"bench-{turn - 1}"], prompts[f"bench-{turn}"]
        assert np.array_equal(now[: len(before)], before)
        answer = now[len(before) : len(before) + 5]
        assert np.array_equal(answer, 300 + np.arange(len(before), len(before) + 5) % 100)
    assert [record.arrival_s for record in run.records[1:3]] == pytest.approx(
        [
            run.records[0].finished_s + 2,  # type: ignore[operator]
            run.records[1].finished_s + 2,  # type: ignore[operator]
        ]
    )
    assert run.records[2].cached_tokens > run.records[1].cached_tokens > 90
    assert run.kv.hit_rate is not None
    assert run.kv.hit_rate > 0.4


def test_a_request_that_cannot_fit_is_counted_and_the_rest_goes_on(bench: Any) -> None:
    mix = [{"input_tokens": 3000}, {"input_tokens": 50}]
    run = play(bench, load(mix=mix, output_tokens=3))
    result = run.result()
    assert result.failed == sum(record.input_tokens == 3000 for record in run.records) > 0
    assert result.completed == 12 - result.failed
    assert result.errors == {"refused": result.failed}
    assert run.samples["refused"].startswith("the prompt has 3000 tokens")


def test_evictions_are_counted(bench: Any) -> None:
    workload = load(arrival={"kind": "closed", "concurrency": 8, "requests": 8}, output_tokens=200)
    run = play(bench, workload, num_blocks=70, scheduler_reserve_full_isl=False)
    assert run.preemptions > 0
    assert run.result().completed == 8


def test_a_warm_up_is_not_in_the_figures(bench: Any) -> None:
    engine = bench.engine()
    engine.open()
    warm_up(engine, load(), 3, bench.clock.wait)
    assert not engine.has_work
    run = drive(engine, load(), wait=bench.clock.wait)
    assert run.result().requests == 12
    assert not run.kv.hit_rate  # its contents were others


def test_the_classic_policies_come_out_in_their_order(bench: Any) -> None:
    workload = load(
        arrival={"kind": "closed", "concurrency": 8, "requests": 48},
        input_tokens={"uniform": [32, 1500]},
        output_tokens={"uniform": [32, 256]},
    )

    followed: list[str] = []

    class Follower:
        def begin(self, policy: str, requests: int) -> None:
            followed.append(f"{policy} begins {requests}")

        def finished(self, run: PolicyResult) -> None:
            followed.append(f"{run.policy} did {run.result.completed}")

    runs = compare(
        lambda policy: bench.engine(policy=policy),
        workload,
        warmup=1,
        wait=bench.clock.wait,
        watch=Follower(),
    )
    assert [run.policy for run in runs] == list(CLASSIC)
    assert followed[:4] == ["naive begins 8", "naive did 8", "static begins 48", "static did 48"]
    rates = {run.policy: run.result.throughput_output_tokens_per_s for run in runs}
    assert rates["naive"] < rates["static"] < rates["continuous"]
    comparison = Comparison("x", tuple(runs), floor_tokens_per_s=100.0)
    ratios = comparison.ratios()
    assert ratios["throughput continuous / naive"] == pytest.approx(rates["continuous"] / rates["naive"])
    assert ratios["itl p99 continuous-chunked / continuous"] < 0.5
    assert ratios["naive decode / byte floor of one stream"] == pytest.approx(1.0, rel=0.02)
    assert len(describe(comparison)) == 3
    assert comparison.to_dict()["policies"]["naive"]["requests"] == 8


def test_a_seed_is_of_what_each_policy_is_asked(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def prompts(**keys: Any) -> list[list[int]]:
        asked: list[list[int]] = []
        add = Engine.add
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "add", lambda self, r: (asked.append(r.prompt.tolist()), add(self, r))[1])
            compare(lambda policy: bench.engine(policy=policy), load(), policies=["static"],
                    warmup=0, wait=bench.clock.wait, **keys)  # fmt: skip
        return asked

    assert prompts() == prompts(seed=0)
    assert prompts() != prompts(seed=3)


def test_a_comparison_says_what_the_figures_say() -> None:
    def run(policy: str, ttft_s: float, gap_ms: float) -> PolicyResult:
        record = RequestRecord(0, 0.0, 10, 10, ttft_s, ttft_s + 1)
        return PolicyResult(policy, 1, summarise([record], np.array([gap_ms])), 1)

    textbook = describe(
        Comparison("x", (run("static", 9, 10), run("continuous", 2, 90), run("continuous-chunked", 2, 20)))
    )
    assert textbook[0] == "A closed batch makes newcomers wait: mean first token 9.0 s against 2.0 s."
    assert textbook[1].startswith("Chunks cap how long a prompt can stall a stream: p99 between tokens 20 ms")
    contrary = describe(
        Comparison("x", (run("static", 1, 10), run("continuous", 2, 20), run("continuous-chunked", 2, 90)))
    )
    assert "did not make newcomers wait longer" in contrary[0]
    assert "did not shorten the longest stalls" in contrary[1]


def test_the_longest_stalls_are_the_longest_not_the_99th_percentile() -> None:
    def run(policy: str, *gaps_ms: float) -> PolicyResult:
        return PolicyResult(
            policy, 1, summarise([RequestRecord(0, 0.0, 10, 10, 1.0, 2.0)], np.array(gaps_ms)), 1
        )

    whole, chunked = [5.0] * 199 + [255.5], [5.0] * 150 + [46.6] * 50
    told = describe(Comparison("x", (run("continuous", *whole), run("continuous-chunked", *chunked))))
    assert told[-1].startswith(
        "Chunks cap the longest stall of a stream: the longest stall is 47 ms against 256 ms"
    )


def test_overhead_measures_the_steps_of_a_full_engine() -> None:
    measured = measure(8, steps=30)
    assert measured.running == 8
    assert 0 < measured.schedule_us < measured.engine_us
    assert measured.update_us > 0


def test_what_an_engine_records_is_a_workload_with_the_same_prefixes(bench: Any, tmp_path: Path) -> None:
    workload = load(
        arrival={"kind": "poisson", "rate": 20, "requests": 10},
        shared_prefix_tokens=48,
        shared_prefix_groups=2,
        tenant="team",
    )
    first = play(bench, workload, record=str(tmp_path / "r.jsonl"))
    bench.engines[0].close()
    replayed = load_workload(tmp_path / "r.jsonl")
    again = play(bench, replayed)
    for attribute in ("input_tokens", "output_tokens", "tenant", "cached_tokens", "ttft_ms", "e2e_ms"):
        before = [getattr(record, attribute) for record in first.records]
        after = [getattr(record, attribute) for record in again.records]
        assert after == (pytest.approx(before, abs=0.01) if attribute.endswith("_ms") else before)
    assert sum(record.cached_tokens for record in again.records) >= 48 * 6

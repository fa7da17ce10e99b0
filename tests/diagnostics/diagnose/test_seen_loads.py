"""The load that logs and pages tell: their own lengths, and none where nobody asked the server anything."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.diagnose import Subject, read_subject
from camshaft.diagnostics.diagnose.choose import prepared_for, rig_for
from camshaft.diagnostics.diagnose.limits import hardware_limits
from camshaft.diagnostics.diagnose.load import fitted_load
from camshaft.diagnostics.diagnose.situation import Situation
from camshaft.diagnostics.evidence import Evidence, Figure, LoadHints, observed_mapping
from camshaft.diagnostics.results import Targets

COMMAND = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
LENGTHS = {"input_tokens": tuple(range(100, 10_100, 100)), "output_tokens": tuple(range(2, 202, 2))}


def _subject(evidence: Evidence) -> Subject:
    return read_subject(COMMAND, evidence, gpu="H100")


def _situation(evidence: Evidence) -> Situation:
    subject = _subject(evidence)
    return Situation(subject, evidence, Targets(), subject.given)


def _between_pages(**figures: float) -> Evidence:
    told = [Figure(name=name, value=value, source="p", derived=True) for name, value in figures.items()]
    means = [
        Figure(name=name, value=float(np.mean(seen)), source="p", statistic="mean")
        for name, seen in LENGTHS.items()
    ]
    return Evidence(figures=[*told, *means], lengths=dict(LENGTHS))


def test_a_pages_lengths_are_drawn_and_what_is_done_arrives() -> None:
    workload = fitted_load(
        _situation(_between_pages(completed_per_s=6.0, waiting=0.0, running=40.0))
    ).workload
    inputs = sorted(request.input_tokens for request in workload.requests())
    assert workload.summary().rate == pytest.approx(6.0)
    assert inputs[0] < 1000 < inputs[len(inputs) // 2] < 7000
    assert inputs[-1] == 8192 - 1 - 200  # no prompt leaves no room for the longest answer


def test_lengths_that_somebody_gives_stand_above_a_pages() -> None:
    told = Evidence(load=[LoadHints(input_tokens=64, concurrency=4)]).merge(_between_pages())
    requests = list(fitted_load(_situation(told)).workload.requests())
    assert {request.input_tokens for request in requests} == {64}
    assert len({request.output_tokens for request in requests}) > 10


def test_the_first_tokens_floor_says_how_many_requests_reach_it() -> None:
    evidence = _between_pages(completed_per_s=6.0)
    subject = read_subject(COMMAND, evidence, gpu="H100")
    prepared = prepared_for(subject, evidence, Targets())
    assert prepared is not None
    equal = fitted_load(
        _situation(Evidence(load=[LoadHints(input_tokens=64, output_tokens=8, concurrency=4)]))
    )
    for load, share in ((fitted_load(_situation(evidence)), range(15, 28)), (equal, [100])):
        limits = {limit.name: limit.why for limit in hardware_limits(prepared, load.workload)}
        assert any(f"which {n}% of the requests" in limits["ttft_floor_ms"] for n in share)


def test_an_idle_server_has_no_load_to_replay() -> None:
    idle = observed_mapping({"running": 0, "waiting": 0}, "p")
    with pytest.raises(EvidenceError, match="no load is seen"):
        rig_for(_situation(idle), None, None)
    asked = Evidence(load=[LoadHints(request_rate_per_s=2.0)]).merge(idle)
    assert rig_for(_situation(asked), None, None)[0].workload.summary().rate == pytest.approx(2.0)


@pytest.mark.parametrize("reused", [0.4, 0.7])
def test_what_a_prefix_cache_was_seen_to_spare_is_spared_in_the_replay(reused: float) -> None:
    """Whether all prompts are equally long or as a page tells them; the first of each group computes it."""
    seen = {"prefix_hit_rate": reused, "waiting": 0.0, "running": 20.0}
    equal = Evidence(load=[LoadHints(input_tokens=3000, output_tokens=20, request_rate_per_s=9.0)])
    for evidence in (equal.merge(observed_mapping(seen, "p")), _between_pages(completed_per_s=6.0, **seen)):
        rig, _ = rig_for(_situation(evidence), prepared_for(_subject(evidence), evidence, Targets()), None)
        assert any(f"spares the {reused:.0%}" in line for line in rig.assumptions)
        cache = rig.play({}).result.kv
        assert cache is not None
        assert cache.hit_rate == pytest.approx(reused, abs=0.06)


@pytest.mark.parametrize(
    ("figures", "shares"),
    [({"preemptions": 40.0}, None), ({"prefix_hit_rate": 0.01}, None), ({}, False)],
    ids=["evicted", "hardly", "random"],
)
def test_hits_that_are_no_reuse_are_not_replayed(figures: dict[str, float], shares: bool | None) -> None:
    seen = {"prefix_hit_rate": 0.4, "running": 20.0, "waiting": 3.0}
    load = LoadHints(input_tokens=3000, output_tokens=150, concurrency=20, shared_prefix=shares)
    evidence = Evidence(load=[load]).merge(observed_mapping(seen | figures, "p"))
    assert fitted_load(_situation(evidence)).workload.shape.shared_prefix_tokens == 0


def test_what_fills_the_cache_tells_how_long_the_requests_are() -> None:
    """Two that run and fill a cache of which only the arithmetic is known hold long contexts."""
    evidence = observed_mapping({"running": 2, "waiting": 2, "kv_usage": "90%"}, "observed")
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
    subject = read_subject(command, evidence, gpu="L40S", version="0.18.0")
    prepared = prepared_for(subject, evidence, Targets())
    assert prepared is not None
    holds, room = prepared.budget.kv_tokens, prepared.settings.max_model_len
    load = fitted_load(Situation(subject, evidence, Targets(), {"max_model_len": room}, None, holds)).workload
    told = load.summary()
    assert told.input_tokens_mean + told.output_tokens_mean / 2 == pytest.approx(0.45 * holds, rel=0.15)
    assert told.input_tokens_max + told.output_tokens_max < room

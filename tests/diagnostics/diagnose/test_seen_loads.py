"""The load that logs and pages tell: their own lengths, and none where nobody asked the server anything."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.diagnose import read_subject
from camshaft.diagnostics.diagnose.choose import prepared_for, rig_for
from camshaft.diagnostics.diagnose.limits import hardware_limits
from camshaft.diagnostics.diagnose.load import fitted_load
from camshaft.diagnostics.diagnose.situation import Situation
from camshaft.diagnostics.evidence import Evidence, Figure, LoadHints, observed_mapping
from camshaft.diagnostics.results import Targets

COMMAND = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
LENGTHS = {"input_tokens": tuple(range(100, 10_100, 100)), "output_tokens": tuple(range(2, 202, 2))}


def _situation(evidence: Evidence) -> Situation:
    subject = read_subject(COMMAND, evidence, gpu="H100")
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

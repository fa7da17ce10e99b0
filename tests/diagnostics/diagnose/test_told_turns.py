"""A turn as it is told: every change of it, its price, and what else would keep the targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from camshaft.core.config import load_config
from camshaft.core.workload import Workload, load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.diagnose import Proof, Proposal, Report, Verdict, diagnose, read_subject
from camshaft.diagnostics.diagnose.model import Change
from camshaft.diagnostics.diagnose.prove import Objective, telling
from camshaft.diagnostics.diagnose.rig import SimulatedRig
from camshaft.diagnostics.diagnose.servers import servers_for
from camshaft.diagnostics.evidence import Evidence
from camshaft.diagnostics.report import page, text
from camshaft.diagnostics.results import RequestRecord, Result, parse_targets, summarise
from camshaft.diagnostics.simulate import Replay, prepare
from camshaft.diagnostics.simulate.steady import Steady

COPIES = Proposal(
    bottleneck="communication",
    knob="tensor_parallel_size",
    before=4,
    after=2,
    why="w",
    changes={"tensor_parallel_size": 2, "data_parallel_size": 2},
    was={"data_parallel_size": 1},
)


def _rig(slo: str, rate: float) -> SimulatedRig:
    prepared = prepare(
        load_config("h100-8b", purpose="inspect"), load_hardware("H100"), targets=parse_targets(slo)
    )
    return SimulatedRig(prepared, load_workload("chat").first(120).at_rate(rate))


def _proof(rig: SimulatedRig, proposal: Proposal) -> Proof:
    before, after = rig.play({}).result, rig.play(proposal.turned).result
    return Proof(proposal=proposal, before=before, after=after, gain=0.1, predicted={}, worth="gains")


def test_a_turn_of_several_knobs_is_told_whole_everywhere() -> None:
    told = "tensor_parallel_size 4 -> 2, data_parallel_size 1 -> 2 (2 copies on the same devices)"
    assert COPIES.text == told
    verdict = Verdict(
        bottleneck="communication",
        why="w",
        confidence="simulated",
        knob=COPIES.knob,
        before=4,
        after=2,
        beside=COPIES.beside,
    )
    assert text.headline(verdict).startswith(
        "lower tensor_parallel_size from 4 to 2, data_parallel_size 1 -> 2 (2 copies on the same devices)"
    )
    assert text.spelled(verdict) == "--tensor-parallel-size 2 --data-parallel-size 2"
    assert verdict.to_dict()["changes"] == {"tensor_parallel_size": 2, "data_parallel_size": 2}
    rig = _rig("", 4.0)
    proof = replace(_proof(rig, replace(COPIES, changes={})), proposal=COPIES)
    report = Report(title="t", verdict=verdict, alternatives=(proof,))
    assert f"{told}: gains" in text.render(report)
    assert "data_parallel_size 1 -&gt; 2" in page.render(report)


def test_the_first_line_names_what_gets_clearly_worse() -> None:
    def line(gaps_after: float) -> str:
        rows = {
            "ttft_p50_ms": Change(before=11306.0, after=1412.0, low=1412.0, high=1412.0),
            "itl_p99_ms": Change(before=246.0, after=gaps_after, low=gaps_after, high=gaps_after),
        }
        verdict = Verdict(
            bottleneck="admission_cap",
            why="w",
            confidence="simulated",
            knob="max_num_seqs",
            before=64,
            after=109,
            predicted=rows,
            telling="ttft_p50_ms",
        )
        return text.headline(verdict)

    assert ", but between tokens p99 246 -> 643 ms" in line(643.0)
    assert "but" not in line(260.0)


def test_a_turn_that_may_change_answers_is_counted_beside_the_others() -> None:
    """One server keeps the targets with it, several without: whoever buys servers must know."""
    rig = _rig("ttft=500ms,itl=50ms", 16.0)
    turn = Proposal(
        bottleneck="kv_capacity", knob="max_num_batched_tokens", before=2048, after=1024, why="", lossy=True
    )
    found = servers_for(rig, 16.0, [_proof(rig, turn)])
    assert found is not None
    assert (found.turned, found.lossy, found.lossy_servers) == (None, turn, 1)
    assert ", 1 with max_num_batched_tokens 1024 (answers may change)" in found.sentence()
    assert found.to_dict()["lossy"] == {"max_num_batched_tokens": 1024, "servers": 1}


def test_one_server_is_counted_by_the_replay_that_the_table_shows() -> None:
    load = load_workload("chat").at_rate(2.0)
    played: list[Workload] = []

    def play(told: Workload) -> Replay:
        played.append(told)
        raise AssertionError

    for rate, requests in ((2.0, load.count), (1.0, load.count // 2)):
        try:
            Steady(play, load, parse_targets("ttft=1s")).at(rate)
        except AssertionError:
            assert played[-1].count == requests
    assert played[0].shape == load.shape


def test_clients_that_start_at_once_are_judged_by_what_they_send_afterwards() -> None:
    """256 prompts at once take seconds; each of those that follow comes in a fraction of one."""
    subject = read_subject("vllm serve Qwen/Qwen3-8B", Evidence(), gpu="H100")
    load = load_workload("chat").first(512).at_concurrency(256)
    report = diagnose(subject, Evidence(), workload=load, targets=parse_targets("ttft=1s"))
    assert report.slo["met"]
    assert report.slo["good_share_with_start"] < 0.6
    assert "the load keeps its targets" in report.verdict.why


def test_copies_on_the_same_devices_are_told_before_the_server_is_full() -> None:
    command = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4"
    load = load_workload("chat").first(300).at_rate(20.0)
    report = diagnose(read_subject(command, Evidence(), gpu="H100"), Evidence(), workload=load)
    assert report.verdict.bottleneck == "none"
    told = "Once it is full, tensor_parallel_size 1 and data_parallel_size 4 on the same devices get through"
    assert told in report.verdict.advice


def test_a_turn_that_hardly_lets_any_request_keep_the_targets_is_told_by_what_else_it_does() -> None:
    def result(good: int, seconds: float) -> Result:
        rows = [RequestRecord(n, 0.0, 8, 8, 0.1 if n < good else 2.0, seconds) for n in range(40)]
        return summarise(rows, np.array([]), targets=parse_targets("ttft=1s"))

    assert telling(result(0, 20.0), result(3, 10.0), Objective()) != "goodput_requests_per_s"
    assert telling(result(0, 20.0), result(30, 10.0), Objective()) == "goodput_requests_per_s"

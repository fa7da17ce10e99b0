"""What a verdict is worth: replayed at the ends of the declared error, held to its own table, told with its targets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import pytest

from camshaft.core.config import load_config
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.diagnose import Proof, Proposal, Report, Verdict, diagnose, read_subject
from camshaft.diagnostics.diagnose.ends import Ends, at_the_ends, kept
from camshaft.diagnostics.diagnose.facts import about
from camshaft.diagnostics.diagnose.prove import (
    Objective,
    beyond_chance,
    predicted,
    telling,
    then_also,
    together,
)
from camshaft.diagnostics.evidence import Evidence, observed_mapping
from camshaft.diagnostics.report import page, structured, text
from camshaft.diagnostics.results import Distribution, Result, Targets, parse_targets, summarise
from camshaft.diagnostics.simulate import prepare


@cache
def _report(preset: str, slo: str = "") -> Report:
    evidence = Evidence()
    subject = read_subject(preset, evidence)
    load = load_workload("chat").first(256)
    return diagnose(subject, evidence, workload=load, targets=parse_targets(slo))


def test_a_verdict_has_the_ranges_of_both_replays_at_the_ends_of_the_error() -> None:
    report = _report("h100-8b", "ttft=500ms,itl=50ms")
    change = report.verdict.predicted["goodput_requests_per_s"]
    assert change.before_range is not None
    low, high = change.before_range
    assert low < change.before < high
    assert high > 5 * low  # the target lies on the edge of the gap: the prediction says so
    assert change.low <= change.after <= change.high
    assert report.verdict.within_error  # with faster steps most requests keep the target as it is
    assert "8 % faster the turn gains nothing in goodput" in report.verdict.at_the_ends
    assert "the gain ends at about" in report.verdict.at_the_ends
    assert (
        "from_range"
        in json.loads(structured.render(report))["verdict"]["predicted"]["goodput_requests_per_s"]
    )


def test_a_verdict_that_turns_on_the_error_says_so() -> None:
    """At 54 ms no knob gains; were steps 8 % slower, one would: the first line is not sold as proof."""
    report = _report("h100-8b", "ttft=500ms,itl=54ms")
    assert report.verdict.knob is None
    assert report.verdict.within_error
    shown = text.render(report)
    assert "[within the error]" in shown.splitlines()[0]
    assert "% slower, max_num_batched_tokens" in shown
    assert "within the error" in page.render(report)


def test_load_release_targets_and_whether_they_are_kept_are_told_in_every_form() -> None:
    report = _report("h100-8b", "ttft=500ms,itl=54ms")
    told = json.loads(structured.render(report))
    assert told["slo"]["met"] is True
    # 64 start at once and wait for each other's prompts, and for nothing else: that is left out
    assert told["slo"]["good_share"] > 0.95 > told["slo"]["good_share_with_start"]
    assert told["slo"]["targets"] == "ttft 500 ms, itl 54 ms"
    assert told["about"]["device"] == "H100 SXM"
    assert told["about"]["load"].startswith("chat: 256 requests")
    for shown in (text.render(report), page.render(report)):
        assert "load: chat: 256 requests" in shown
        assert "64 clients that start all at once" in shown
        assert "what is sent before each of them has its first token is left out of the latencies" in shown
        assert "with the start counted, at which all clients come at once" in shown
        assert "SLO ttft 500 ms, itl 54 ms: kept as it is" in shown
        assert "99th percentile of its own gaps" in shown
        assert "95% of its requests are good" in shown


def test_a_foreign_engine_without_a_release_says_which_one_is_assumed() -> None:
    from camshaft.diagnostics.simulate.engines import NEWEST_VLLM

    command = "vllm serve meta-llama/Llama-3.3-70B-Instruct"
    report = diagnose(read_subject(command, Evidence(), gpu="H100"), Evidence())
    assert f"engine: vllm {NEWEST_VLLM} assumed" in text.render(report)


@pytest.mark.parametrize(
    ("preset", "slo"),
    [
        ("h100-8b", ""),
        ("h100-8b", "ttft=500ms,itl=54ms"),
        ("h100-8b", "ttft=30ms,itl=20ms"),  # no prompt of this load comes in 30 ms
        ("h100-70b", ""),
    ],
)
def test_a_verdict_never_contradicts_its_table(preset: str, slo: str) -> None:
    report = _report(preset, slo)
    gains = [proof for proof in report.alternatives if proof.worth == "gains"]
    if report.verdict.knob is None:
        assert not gains
    shown = text.render(report)
    assert bool(re.search(r": gains$", shown, re.MULTILINE)) == bool(gains)


def test_a_knob_that_was_set_by_hand_is_no_default_at_fault() -> None:
    shown = text.render(_report("h100-8b", "ttft=500ms,itl=50ms"))
    assert "mechanism: chunked_prefill, max_num_batched_tokens as the configuration sets it" in shown
    assert "default at fault" not in shown


def test_where_first_tokens_are_what_is_late_the_verdict_is_about_them() -> None:
    """Half the requests wait 13 s for a first token, slots full: not the gaps between tokens come first."""
    report = _report("h100-70b")
    assert report.verdict.knob == "max_num_seqs"
    assert "first token p50" in text.render(report).splitlines()[0]


def test_a_pair_that_is_better_in_every_figure_is_told_beside_the_one_knob() -> None:
    report = _report("h100-70b")
    assert "With max_num_batched_tokens 512 too, replayed together: " in report.verdict.advice
    held = next(int(limit.value) for limit in report.limits if limit.name == "sequences_held")
    assert f"The KV cache holds {held} full sequences" in report.verdict.advice


def test_a_pair_that_loses_in_a_figure_is_not_advised() -> None:
    def proof(turned: dict[str, int], after: Result) -> Proof:
        proposal = Proposal(bottleneck="token_budget", knob="k", before=1, after=2, why="w", changes=turned)
        return Proof(proposal=proposal, before=_result(50), after=after, gain=1.0, predicted={})

    chosen = proof({"k": 2}, _result(200))
    assert "output 1,000 -> 1,100 tokens/s" in then_also(
        chosen, proof({"k": 2, "m": 3}, _result(200, rate=1100.0))
    )
    assert not then_also(chosen, proof({"k": 2, "m": 3}, _result(100, rate=1100.0)))
    assert not then_also(chosen, proof({"k": 4, "m": 3}, _result(200, rate=1100.0)))


def test_two_that_gain_only_together_are_told_where_no_knob_does_alone() -> None:
    turned = {"k": 2, "m": 3}
    proposal = Proposal(bottleneck="token_budget", knob="k and m", before=1, after=2, why="w", changes=turned)
    before, after = _result(50), _result(50, rate=1300.0)
    rows = predicted(before, after, 8.0)
    pair = Proof(
        proposal=proposal, before=before, after=after, gain=0.3, predicted=rows, telling="output_tokens_per_s"
    )
    assert together(pair) == "Two together gain, k 2 and m 3: output 1,000 -> 1,300 tokens/s"


def test_a_model_alone_is_said_to_be_judged_as_this_engine_s() -> None:
    told = about(read_subject("qwen3-8b", Evidence(), gpu="H100"))
    assert "--engine vllm" in told["judged"]
    assert "judged" not in about(read_subject("h100-8b", Evidence()))
    assert "judged" not in about(read_subject("qwen3-8b", Evidence(), gpu="H100", engine="vllm"))


def test_what_is_replayed_next_is_told_on_the_way() -> None:
    heard: list[str] = []
    subject = read_subject("h100-8b", Evidence())
    diagnose(
        subject, Evidence(), workload=load_workload("chat").first(8).at_concurrency(4), tell=heard.append
    )
    assert heard[0] == "replaying the load as it is"
    assert "replaying it with all steps faster and slower" in heard


def _result(good: int, requests: int = 256, rate: float = 1000.0) -> Result:
    plain = summarise([], [], targets=Targets(itl_ms=50.0))  # type: ignore[arg-type]
    spread = Distribution(10.0, 10.0, 10.0, 10.0, 10.0)
    return replace(
        plain,
        requests=requests,
        completed=requests,
        duration_s=10.0,
        goodput_requests_per_s=good / 10.0,
        throughput_requests_per_s=requests / 10.0,
        throughput_output_tokens_per_s=rate,
        ttft_ms=spread,
    )


def test_a_handful_of_requests_more_is_chance_and_no_gain_in_goodput() -> None:
    assert not beyond_chance(_result(11), _result(14))
    assert beyond_chance(_result(11), _result(200))
    assert telling(_result(11), _result(14, rate=1100.0), Objective()) == "output_tokens_per_s"
    assert telling(_result(11), _result(200), Objective()) == "goodput_requests_per_s"


def test_the_share_of_good_requests_counts_those_that_failed() -> None:
    assert _result(128).good_share == 0.5
    one = _result(128)
    two = replace(one, goodput_requests_per_s=2 * one.goodput_requests_per_s, throughput_requests_per_s=51.2)
    assert two.good_share == 0.5  # of two copies, whose rates are added and whose requests are one's
    assert _result(244).keeps_targets  # 95.3 %
    assert not _result(243).keeps_targets


@pytest.mark.parametrize(("faster_after", "lost"), [(200, False), (249, True)])
def test_a_gain_that_one_end_of_the_error_lacks_is_within_it(faster_after: int, lost: bool) -> None:
    proposal = Proposal(bottleneck="token_budget", knob="k", before=1, after=2, why="w")
    aim, before, after = Objective(), _result(50), _result(250)
    proof = Proof(
        proposal=proposal, before=before, after=after, gain=1.0, predicted=predicted(before, after, 8.0, aim)
    )
    verdict = Verdict(bottleneck="token_budget", knob="k", before=1, after=2, why="w", confidence="simulated")
    faster_before = 249 if lost else 60
    ends = Ends(8.0, (_result(faster_before), _result(30)), (_result(faster_after), _result(240)))
    told = at_the_ends(verdict, proof, ends, aim)
    assert told.within_error is lost
    assert ("8 % faster the turn gains nothing" in told.at_the_ends) is lost
    change = told.predicted["goodput_requests_per_s"]
    assert change.before_range == (3.0, faster_before / 10)
    assert (change.low, change.high) == (min(faster_after, 240) / 10, 25.0)
    assert text.headline(told).endswith("simulated, within the error]") is lost


def test_targets_missed_at_an_end_are_told_beside_a_gain_at_both() -> None:
    """The turned replay keeps them, and with slower steps 77 % do: it gains there, and that is not enough."""
    proposal = Proposal(bottleneck="token_budget", knob="k", before=1, after=2, why="w")
    aim, before, after = Objective(), _result(50), _result(250)
    proof = Proof(
        proposal=proposal, before=before, after=after, gain=1.0, predicted=predicted(before, after, 8.0, aim)
    )
    verdict = Verdict(bottleneck="token_budget", knob="k", before=1, after=2, why="w", confidence="simulated")
    ends = Ends(8.0, (_result(60), _result(30)), (_result(256), _result(198)))
    told = at_the_ends(verdict, proof, ends, aim).at_the_ends
    assert told.startswith("it gains at both ends")
    assert "with all steps 8 % slower the SLO is missed (77.3% of the requests keep it)" in told
    kept_at_both = Ends(8.0, ends.before, (_result(256), _result(244)))
    assert "missed" not in at_the_ends(verdict, proof, kept_at_both, aim).at_the_ends


def test_the_range_of_a_share_holds_the_share_itself() -> None:
    """Steps of another length may move every share the same way, by chance."""
    load = load_workload("chat").first(8).at_concurrency(4)
    prepared = prepare(load_config("h100-8b", purpose="inspect"), load_hardware("H100"))
    seen = replace(prepared.replay(load), result=_result(4))
    told = kept(seen, Ends(8.0, (_result(12), _result(6))))
    low, high = told["good_share_range"]
    assert low <= told["good_share"] <= high


def test_a_verdict_on_fitted_steps_is_replayed_at_both_ends_too() -> None:
    told = {
        "metrics": {
            "output_tok_s": 54,
            "per_request_tok_s": 30,
            "ttft_p50_s": 33,
            "running": 2,
            "waiting": 14,
        },
        "workload": {"concurrency": 16, "input_len": 128, "output_len": 128},
    }
    seen = observed_mapping(told, "observed")
    subject = read_subject("vllm serve acme/secret-model-7b --max-num-seqs 2", seen)
    verdict = diagnose(subject, seen).verdict
    assert (verdict.knob, verdict.confidence) == ("max_num_seqs", "fitted")
    assert "both ends" in verdict.at_the_ends
    assert verdict.predicted["output_tokens_per_s"].before_range is not None


def test_a_default_at_fault_is_told_with_the_knob_that_stands_for_it() -> None:
    verdict = Verdict(
        bottleneck="prefill_interference", why="w", confidence="simulated", knob="max_num_batched_tokens",
        before=8192, after=1024,
    )  # fmt: skip
    shown = text.render(Report(title="t", verdict=verdict))
    assert "default at fault: chunked_prefill, by max_num_batched_tokens as it is by default" in shown

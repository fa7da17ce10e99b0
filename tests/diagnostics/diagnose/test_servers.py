"""How many servers a rate needs: the search, and what the report says of a rate that one server does not carry."""

from __future__ import annotations

from functools import cache

import pytest

from camshaft.core.config import load_config
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.diagnose import Proposal, Report, diagnose, read_subject
from camshaft.diagnostics.diagnose.rig import SimulatedRig
from camshaft.diagnostics.diagnose.servers import MOST, Near, Servers, fewest, servers_for
from camshaft.diagnostics.evidence import Evidence
from camshaft.diagnostics.results import parse_targets
from camshaft.diagnostics.simulate import prepare
from camshaft.diagnostics.simulate.steady import capacity_per_s, settles


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 8, 9, 13])
def test_a_small_number_is_found_exactly(needed: int) -> None:
    assert fewest(lambda servers: servers >= needed, 1) == needed
    assert fewest(lambda servers: servers >= needed, 1, known=64) == needed


def test_a_large_number_is_enough_and_not_far_above() -> None:
    found = fewest(lambda servers: servers >= 777, 5)
    assert found is not None
    assert 777 <= found <= 777 * 1.12


def test_up_to_the_most_servers_a_number_is_found_and_none_beyond() -> None:
    found = fewest(lambda servers: servers >= 4000, 2100)
    assert found is not None
    assert 4000 <= found <= MOST
    assert fewest(lambda _: True, MOST + 1) is None


def test_the_sentence_counts_one_server_and_many() -> None:
    assert Servers(60.0, 1).sentence() == "1 such server keeps up, by replays of equal shares of the load"
    told = Servers(60.0, 6, 120, "ttft 1 s").sentence()
    assert told.startswith("6 such servers (10/s each) keep up; 120 (0.5/s each) keep the SLO, by")
    assert Servers(60.0, None).sentence().startswith("no number of such servers would keep up, by")


def test_where_no_share_holds_there_is_no_number() -> None:
    tried: list[int] = []
    assert fewest(lambda servers: bool(tried.append(servers)), 3) is None
    assert max(tried) <= MOST


@cache
def _overloaded(slo: str) -> Report:
    load = load_workload(
        {
            "arrival": {"kind": "poisson", "rate": 60, "requests": 400},
            "input_tokens": 1000,
            "output_tokens": 60,
        }
    )
    subject = read_subject("h100-8b", Evidence())
    return diagnose(subject, Evidence(), workload=load, targets=parse_targets(slo))


def test_servers_that_keep_up_and_that_keep_the_targets_are_told_apart() -> None:
    report = _overloaded("ttft=300ms,itl=40ms")
    told = report.to_dict()["servers"]
    assert report.verdict.bottleneck == "offered_load"
    assert told["request_rate_per_s"] == 60
    assert 2 <= told["keep_up"] < told["keep_targets"]
    assert told["turned"]["max_num_batched_tokens"] < 2048
    assert told["turned"]["servers"] < told["keep_targets"]
    assert f"{told['keep_targets']:,} (" in report.verdict.why


def test_without_targets_servers_are_those_that_keep_up() -> None:
    told = _overloaded("").to_dict()["servers"]
    assert told["keep_up"] >= 2
    assert told["keep_targets"] is None


def test_a_load_that_one_server_carries_needs_no_count() -> None:
    subject = read_subject("h100-8b", Evidence())
    load = load_workload("chat").first(64).at_rate(1.0)
    assert diagnose(subject, Evidence(), workload=load).servers == {}


@pytest.mark.parametrize(("rate", "settled"), [(10.0, True), (40.0, False)])
def test_requests_that_pile_up_among_those_that_run_are_seen(rate: float, settled: bool) -> None:
    """At 40 a second every slot is not yet taken when arrivals end, but more and more are."""
    load = load_workload("chat").first(240).at_rate(rate)
    prepared = prepare(load_config("h100-8b", purpose="inspect"), load_hardware("H100"))
    assert settles(prepared.replay(load)) is settled


def test_one_server_is_not_said_to_carry_what_piles_up() -> None:
    """First tokens come in time at 20 a second, yet what runs grows to the end: the count begins at two."""
    prepared = prepare(load_config("h100-8b", purpose="inspect"), load_hardware("H100"))
    rig = SimulatedRig(prepared, load_workload("chat").first(240).at_rate(20.0))
    assert not rig.play({}).result.saturated
    found = servers_for(rig, 20.0, [])
    assert found is not None
    assert found.keep_up is not None
    assert found.keep_up >= 2


def test_turns_are_tried_again_on_each_share() -> None:
    """A turn that the replay of the whole load does not suggest is found where a share's replay does."""
    prepared = prepare(
        load_config("h100-8b", purpose="inspect"),
        load_hardware("H100"),
        targets=parse_targets("ttft=500ms,itl=50ms"),
    )
    rig = SimulatedRig(prepared, load_workload("chat").first(120).at_rate(16.0))
    turn = Proposal(bottleneck="token_budget", knob="max_num_batched_tokens", before=2048, after=1024, why="")
    found = servers_for(rig, 16.0, [], 1, lambda share: [turn] if share is not rig.play({}) else [])
    assert found is not None
    assert (found.turned, found.turned_servers) == (turn, 1)
    assert found.keep_targets is not None
    assert found.keep_targets > 1


def test_what_nearly_does_with_one_server_fewer_is_told() -> None:
    turn = Proposal(bottleneck="token_budget", knob="max_num_batched_tokens", before=2048, after=1024, why="")
    told = Servers(40.0, 3, 10, "ttft 1 s", turn, 3, Near(2, turn, 0.763, 8.0)).sentence()
    assert "3 (13.3/s each) with max_num_batched_tokens 1024" in told
    assert "2 with max_num_batched_tokens 1024 keep it for 76% of the requests" in told
    assert told.endswith("would do were all steps 8 % faster, which is within the error")


def test_the_rate_of_a_full_server_leaves_out_its_filling_and_emptying() -> None:
    """However short the load, the rate told is near that of a long one; of a server with room there is none."""
    prepared = prepare(load_config("h100-8b", purpose="inspect"), load_hardware("H100"))
    load = load_workload("chat")
    long = prepared.replay(load.first(1500).at_rate(60.0))
    short = prepared.replay(load.first(700).at_rate(60.0))
    capacity, told = capacity_per_s(long), capacity_per_s(short)
    assert capacity is not None
    assert told is not None
    assert abs(told / capacity - 1) < 0.1
    assert short.result.throughput_requests_per_s < told
    assert capacity_per_s(prepared.replay(load.first(120).at_rate(2.0))) is None

"""How many servers a rate needs: the search, and what the report says of a rate that one server does not carry."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.core.config import load_config
from camshaft.core.workload import Workload, load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.diagnose import Proposal, Report, diagnose, read_subject
from camshaft.diagnostics.diagnose.choose import rig_for
from camshaft.diagnostics.diagnose.demand import Demand, demand
from camshaft.diagnostics.diagnose.rig import SimulatedRig
from camshaft.diagnostics.diagnose.servers import MOST, SOME, Near, Servers, fewest, halved, servers_for
from camshaft.diagnostics.diagnose.situation import Situation
from camshaft.diagnostics.evidence import Evidence
from camshaft.diagnostics.results import parse_targets
from camshaft.diagnostics.simulate import Prepared, prepare
from camshaft.diagnostics.simulate.steady import WARM_UP, Steady, capacity_per_s, warm_up_s
from camshaft.diagnostics.simulate.sweep import until_saturation


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 8, 9, 13])
def test_a_small_number_is_found_exactly(needed: int) -> None:
    assert fewest(lambda servers: servers >= needed, 1) == needed
    assert halved(lambda servers: servers >= needed, 0, 16) == needed


def test_a_large_number_is_enough_and_not_far_above() -> None:
    found = fewest(lambda servers: servers >= 777, 5)
    assert found is not None
    assert 777 <= found <= 777 * 1.34


def test_up_to_the_most_servers_a_number_is_found_and_none_beyond() -> None:
    found = fewest(lambda servers: servers >= 4000, 2100)
    assert found is not None
    assert 4000 <= found <= MOST
    assert fewest(lambda _: True, MOST + 1) is None


def test_the_sentence_counts_one_server_and_many() -> None:
    assert Servers(60.0, 1).sentence() == "1 such server keeps up, by replays of equal shares of the load"
    told = Servers(60.0, 6, 120, targets="ttft 1 s").sentence()
    assert told.startswith("6 such servers (10/s each) keep up; 120 (0.5/s each) keep the SLO, by")
    assert "; not even 48 keep the SLO" in Servers(60.0, 6, None, 48, "ttft 1 s").sentence()
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
    assert "from 0 to 0" not in report.verdict.why


def test_slots_are_raised_as_far_as_they_help_before_servers_are_counted() -> None:
    """Eight slots leave this server a fourth of what it gets through, twice as many a half."""
    subject = read_subject("h100-8b", Evidence(), overrides=("max_num_seqs=8",))
    load = load_workload("chat").at_rate(8.0)
    report = diagnose(subject, Evidence(), workload=load, targets=parse_targets("ttft=1s,tpot=40ms"))
    assert report.verdict.knob == "max_num_seqs"
    assert report.verdict.after >= 32
    assert report.after is not None
    assert report.after.result.keeps_targets
    assert report.servers == {}


def test_without_targets_servers_are_those_that_keep_up() -> None:
    told = _overloaded("").to_dict()["servers"]
    assert told["keep_up"] >= 2
    assert told["keep_targets"] is None


def test_a_load_that_one_server_carries_needs_no_count() -> None:
    subject = read_subject("h100-8b", Evidence())
    load = load_workload("chat").at_rate(6.0)
    assert diagnose(subject, Evidence(), workload=load).servers == {}


def _server(slots: int) -> Steady:
    config = load_config("h100-8b", (f"max_num_seqs={slots}",), purpose="inspect")
    prepared = prepare(config, load_hardware("H100"))
    return Steady(prepared.settled, load_workload("chat"), prepared.targets)


def test_a_rate_that_an_empty_server_takes_for_a_while_is_not_carried() -> None:
    """Three in a hundred more than it gets through: a replay of any usual length shows no queue."""
    server = _server(256)
    capacity = server.capacity_per_s
    assert capacity is not None
    assert not server.at(1.03 * capacity).result.saturated
    assert not server.carries(1.03 * capacity)
    assert server.carries(0.95 * capacity)


def test_the_rate_of_a_full_server_is_that_of_a_long_replay_that_is_overloaded() -> None:
    server = _server(64)
    long = server.play(load_workload("chat").first(2500).at_rate(60.0))
    ends = sorted(r.finished_s for r in long.records if r.finished_s is not None)
    assert server.capacity_per_s == pytest.approx(2000 / (ends[2250] - ends[250]), rel=0.05)


def test_requests_of_one_length_which_end_all_at_once_give_the_rate_too() -> None:
    """One after the other at 64 at once: 64 prompts and 60 steps a round, whatever the number of rounds."""
    load = load_workload(
        {
            "arrival": {"kind": "poisson", "rate": 1, "requests": 8},
            "input_tokens": 200,
            "output_tokens": 60,
        }
    )
    server = _server(64)
    capacity = capacity_per_s(server.play, load)
    rounds = server.play(load.first(640).at_concurrency(640))
    assert capacity == pytest.approx(640 / rounds.result.duration_s, rel=0.02)


def test_copies_get_through_as_many_times_as_much() -> None:
    load = load_workload("chat")
    config = {"model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192, "max_num_seqs": 16}
    one, two = (
        capacity_per_s(
            prepare(load_config({**config, "data_parallel_size": n}, purpose="inspect"), sheet).settled, load
        )
        for n in (1, 2)
        for sheet in [load_hardware("H100")]
    )
    assert one is not None
    assert two == pytest.approx(2 * one, rel=0.1)


def test_of_conversations_sessions_are_counted() -> None:
    shape = {"input_tokens": 200, "output_tokens": 40}
    arrival = {"kind": "sessions", "sessions": 8, "turns": 4, "rate": 1}
    config = {"model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192, "max_num_seqs": 8}
    play = prepare(load_config(config, purpose="inspect"), load_hardware("H100")).settled
    load = load_workload({**shape, "arrival": arrival})
    assert warm_up_s(load) == WARM_UP * 8
    sessions = capacity_per_s(play, load)
    single = capacity_per_s(
        play, load_workload({**shape, "arrival": {"kind": "poisson", "rate": 1, "requests": 8}})
    )
    assert sessions is not None
    assert single is not None
    assert 3 < single / sessions < 6  # a session is four requests, with longer prompts


def test_a_load_that_cannot_fill_a_server_has_no_capacity(tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2026-01-01 00:00:0{n},100,20\n" for n in range(9))
    )
    play = prepare(load_config("h100-8b", purpose="inspect"), load_hardware("H100")).settled
    load = load_workload(str(file))
    assert capacity_per_s(play, load) is None
    assert Steady(play, load, parse_targets("")).carries(2.0)


def test_one_question_has_one_answer_by_simulate_and_by_diagnose() -> None:
    """What `simulate --until-saturation` says holds, `diagnose` calls carried by one server, and beyond it not."""
    config = {"model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192, "max_num_seqs": 64}
    prepared = prepare(load_config(config, purpose="inspect"), load_hardware("H100"))
    load = load_workload("chat")
    highest = until_saturation(prepared, load).rate_per_s
    asked = [demand_at(prepared, load.at_rate(share * highest)) for share in (0.98, 1.02)]
    assert [found.overloaded for found in asked] == [False, True]
    assert asked[1].done_per_s == pytest.approx(highest)
    assert "8 % faster a full server gets through" in asked[1].turns_at(8.0)
    assert "8 % slower a full server gets through" in asked[0].turns_at(8.0)


def demand_at(prepared: Prepared, load: Workload) -> Demand:
    rig = SimulatedRig(prepared, load)
    subject = read_subject("h100-8b", Evidence())
    return demand(Situation(subject, Evidence(), prepared.targets, {}, load), rig)


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
    told = Servers(40.0, 3, 10, None, "ttft 1 s", turn, 3, Near(2, turn, 0.763, 8.0)).sentence()
    assert "3 (13.3/s each) with max_num_batched_tokens 1024" in told
    assert "2 with max_num_batched_tokens 1024 keep it for 76% of the requests" in told
    assert told.endswith("would do were all steps 8 % faster, which is within the error")


class _Server:
    """Carries everything, and keeps the targets up to a rate."""

    targets = parse_targets("ttft=1s")

    def __init__(self, most_per_s: float) -> None:
        self.most_per_s = most_per_s

    def carries(self, rate_per_s: float) -> bool:
        return True

    def holds(self, rate_per_s: float) -> bool:
        return rate_per_s <= self.most_per_s

    def misses_early(self, rate_per_s: float) -> bool:
        return False

    def steps_at(self, rate_per_s: float) -> int:
        return 1000

    def at(self, rate_per_s: float, for_s: float | None = None) -> Any:
        return SimpleNamespace(result=SimpleNamespace(good_share=0.9))


@pytest.mark.parametrize(("turned_per_s", "told"), [(30.0, True), (2.0, False)])
def test_one_server_fewer_is_told_of_only_where_the_number_is_exact(turned_per_s: float, told: bool) -> None:
    """4 servers are found exactly; about fifty roughly, and one fewer of them may as well do."""
    turn = Proposal(bottleneck="token_budget", knob="max_num_seqs", before=8, after=16, why="")
    rig = SimpleNamespace(
        band_percent=8.0, steady=lambda turned, factor=1.0: _Server(turned_per_s if turned else 0.5)
    )
    proof = SimpleNamespace(proposal=turn, times_done=2.0)
    found = servers_for(rig, 100.0, [proof])  # type: ignore[arg-type]
    assert found is not None
    assert found.turned == turn
    assert (found.near is not None) is told


def test_of_an_overload_it_is_said_how_long_the_figures_last() -> None:
    assert "of 20 s of arrivals; as the load stays, waiting grows" in _overloaded("").verdict.advice


class _Counting(_Server):
    """Carries half a request a second, and keeps the targets at hardly any rate."""

    def __init__(self, most_per_s: float) -> None:
        super().__init__(most_per_s)
        self.asked: list[float] = []

    def carries(self, rate_per_s: float) -> bool:
        return rate_per_s <= 0.5

    def holds(self, rate_per_s: float) -> bool:
        self.asked.append(rate_per_s)
        return rate_per_s <= self.most_per_s


def test_servers_that_nobody_would_buy_are_not_counted() -> None:
    """At 2 a second and 0.5 for each server 4 keep up; hundreds would keep the targets."""
    server = _Counting(0.001)
    found = servers_for(SimpleNamespace(steady=lambda turned, factor=1.0: server), 2.0, [])  # type: ignore[arg-type]
    assert found is not None
    assert (found.keep_up, found.keep_targets, found.more_than) == (4, None, SOME)
    assert found.far_more
    assert len(server.asked) <= 5


def test_a_turn_that_helps_ends_the_search_without_one() -> None:
    """It is found where the search passes it, and without it only so many more are tried."""
    turn = Proposal(bottleneck="token_budget", knob="max_num_seqs", before=8, after=16, why="")
    plain, turned = _Counting(0.001), _Counting(0.4)
    rig = SimpleNamespace(band_percent=8.0, steady=lambda knobs, factor=1.0: turned if knobs else plain)
    found = servers_for(rig, 2.0, [SimpleNamespace(proposal=turn, times_done=1.0)])  # type: ignore[arg-type]
    assert found is not None
    assert (found.turned_servers, found.more_than) == (5, 8 * 5)
    assert len(plain.asked) + len(turned.asked) < 12


def test_of_a_load_far_above_capacity_only_what_fills_the_server_is_replayed() -> None:
    prepared = prepare(load_config("h100-8b", purpose="inspect"), load_hardware("H100"))
    shape = {"input_tokens": 8000, "output_tokens": 40}
    replayed = []
    for rate in (0.05, 200.0):
        load = load_workload({**shape, "arrival": {"kind": "poisson", "rate": rate, "requests": 700}})
        subject = read_subject("h100-8b", Evidence())
        rig, _ = rig_for(Situation(subject, Evidence(), prepared.targets, {}, load), prepared, load)
        replayed.append(rig.workload.count)
    assert replayed[1] < replayed[0]
    assert replayed[1] < 700


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        ("ttft=300ms", "of the 0.3 s that its first token may take"),
        ("tpot=8ms", "of the 8 ms that it may take"),
    ],
)
def test_what_one_request_alone_takes_is_told_where_targets_need_many_servers(slo: str, told: str) -> None:
    shape = {"input_tokens": 8000, "output_tokens": 8}
    load = load_workload({**shape, "arrival": {"kind": "poisson", "rate": 6, "requests": 100}})
    subject = read_subject("h100-8b", Evidence(), overrides=("max_model_len=8192",))
    report = diagnose(subject, Evidence(), workload=load, targets=parse_targets(slo))
    assert told in report.verdict.why

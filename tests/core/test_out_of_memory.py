"""A device that runs out of memory: nobody is lost, no token changes, and a recording still replays."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from async_device import AsyncDevice, Clock, never

from camshaft.core.config import ServeConfig
from camshaft.core.engine import Engine
from camshaft.core.recording.replay import replay
from camshaft.core.request import Request, SamplingParams
from camshaft.core.schedule.plan import StepPlan
from camshaft.core.schedule.recovery import Relief
from camshaft.policies.registry import load_policy

Rule = Callable[[StepPlan], bool]


class Served:
    """What clients saw."""

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.errors: dict[int, str | None] = {}


def serve(
    full: Rule = never,
    lost: Rule = never,
    *,
    overlap: bool,
    policy: Any = "continuous-chunked",
    record: Path | None = None,
    poison: int | None = None,
    aborts: bool = False,
) -> tuple[Served, AsyncDevice, Engine]:
    rng = random.Random(7)
    config = ServeConfig(
        model="m",
        max_num_batched_tokens=90,
        enable_prefix_caching=True,
        long_prefill_token_threshold=0,
        max_wait_s=120.0,
        scheduler_reserve_full_isl=True,
        async_scheduling=overlap,
        record=str(record) if record else None,
    )
    device = AsyncDevice(full, lost)
    engine = Engine(config, device, load_policy(policy), clock=Clock())
    engine.open()
    served = Served()

    def step() -> None:
        for output in engine.step():
            served.texts.setdefault(output.handle, []).extend(output.tokens)
            if output.finish_reason:
                served.ends[output.handle] = output.finish_reason
                served.errors[output.handle] = output.error
        engine.check_integrity()

    prompt: list[int] = []
    for handle in range(40):
        fork = f"r{handle - 1}" if rng.random() < 0.2 and handle and handle - 1 != poison else None
        if fork is None:
            prompt = [*range(200, 200 + rng.randint(0, 20)), *[300 + handle] * rng.randint(1, 20)]
        if handle == poison:
            prompt, fork = [666] * 9, None
        params = SamplingParams(max_tokens=rng.randint(1, 25))
        engine.add(
            Request(f"r{handle}", np.array(prompt, np.int32), params, 0.0, handle=handle, fork_of=fork)
        )
        if aborts and rng.random() < 0.15:
            engine.abort([rng.randrange(handle + 1)])
        for _ in range(rng.randint(0, 5)):
            step()
    for _ in range(8000):
        if not engine.has_work:
            break
        step()
    assert not engine.has_work
    engine.close()
    return served, device, engine


def larger_than(tokens: int) -> Rule:
    return lambda plan: plan.total_tokens > tokens


def now_and_then(share: float, seed: int = 1) -> Rule:
    rng = random.Random(seed)
    return lambda plan: plan.total_tokens > 1 and rng.random() < share  # the smallest step is tried thrice


def in_a_bad_time(first: int, last: int) -> Rule:
    return lambda plan: first <= plan.step < last and plan.total_tokens > 2


RULES: dict[str, Callable[[], tuple[Rule, Rule]]] = {
    "large steps": lambda: (larger_than(12), never),
    "all but the smallest": lambda: (larger_than(1), never),
    "now and then": lambda: (now_and_then(0.1), never),
    "a bad time": lambda: (in_a_bad_time(15, 40), never),
    "lost on the way": lambda: (never, now_and_then(0.03)),
    "both": lambda: (now_and_then(0.06), now_and_then(0.03, seed=2)),
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_every_token_comes_as_if_nothing_had_happened(rule: str, overlap: bool) -> None:
    expected, _, _ = serve(overlap=False)
    served, device, engine = serve(*RULES[rule](), overlap=overlap)
    assert served.texts == expected.texts
    assert served.ends == expected.ends
    failures = engine.stats().figures["out_of_memory"]
    assert failures > 0
    assert device.relieved == failures
    assert engine.scheduler.kv.num_free == 26


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["naive", "static", "fair"])
def test_under_other_policies(policy: str, overlap: bool) -> None:
    expected, _, _ = serve(overlap=False, policy=policy)
    served, _, engine = serve(*RULES["both"](), overlap=overlap, policy=policy)
    assert served.texts == expected.texts
    assert engine.stats().figures["out_of_memory"] > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_the_recording_replays_to_the_same_plans(tmp_path: Path, rule: str, overlap: bool) -> None:
    path = tmp_path / "run.jsonl"
    _, _, engine = serve(*RULES[rule](), overlap=overlap, record=path, aborts=True)
    again = replay(path)
    assert again.first_difference is None
    assert again.steps == engine.scheduler.step
    assert again.requests == 40


@pytest.mark.parametrize("overlap", [False, True])
def test_who_never_fits_ends_with_an_error_and_the_others_do_not(tmp_path: Path, overlap: bool) -> None:
    rows: set[int] = set()

    def has_poison(plan: StepPlan) -> bool:
        rows.difference_update(plan.removed.tolist())
        rows.difference_update(new.row for new in plan.added)
        rows.update(new.row for new in plan.added if new.tokens[0] == 666)
        return bool(rows & set(plan.rows.tolist()))

    path = tmp_path / "run.jsonl"
    expected, _, _ = serve(overlap=False, poison=8)
    served, _, engine = serve(has_poison, overlap=overlap, poison=8, record=path)
    assert served.ends.pop(8) == "error"
    assert "full" in (served.errors[8] or "")
    assert served.texts.pop(8) == []
    del expected.ends[8], expected.texts[8]
    assert served.ends == expected.ends
    assert served.texts == expected.texts
    assert engine.stats().figures["out_of_memory"] < 60
    assert replay(path).first_difference is None


def test_victims_give_way_and_the_ledger_says_why() -> None:
    served, _, engine = serve(larger_than(2), overlap=False)
    assert len(served.ends) == 40
    assert engine.scheduler.preemptions > 0
    events = [
        event
        for handle in range(40)
        for event in (engine.query("explain", f"r{handle}"))["events"]
        if event["event"] == "evicted"
    ]
    assert any("out of memory" in event["why"] for event in events)


def test_the_limit_halves_and_grows_back() -> None:
    relief = Relief(largest_tokens=100)
    assert not relief.succeeded()
    assert not relief.failed(90)
    assert relief.limit == 45
    assert not relief.failed(45)
    assert relief.limit == 22
    limits = [relief.limit for _ in range(4 * relief.GOOD_RUN) if relief.succeeded()]
    assert limits == [44, 88, None]
    assert not relief.failed(3)
    assert [relief.failed(1) for _ in range(3)] == [False, False, True]
    assert relief.limit == 1
    assert relief.out_of_memory == 6

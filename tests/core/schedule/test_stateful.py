"""Random lives of requests under honest and hostile policies: no block lost or shared wrongly, nobody starves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from camshaft.core.errors import RequestError
from camshaft.core.request import Request, State
from camshaft.policies.base import ADMIT, Admission, Budget, Verdict


class Hostile:
    """A policy that misbehaves in one way."""

    name = "hostile"

    def __init__(self, how: str) -> None:
        self.how = how
        self.dynamic = how in ("nan", "raise-dynamic")
        self.accounts = True

    def order_key(self, view: Any, step: Any) -> Any:
        if self.how.startswith("raise"):
            raise RuntimeError("no")
        if self.how == "nan":
            return (math.nan,)
        if self.how == "starve-odd":
            return (view.seq % 2,)
        return "nonsense" if self.how == "nonsense" else (random.Random(view.seq).random(),)

    def victim_key(self, view: Any, step: Any) -> Any:
        return (view.seq,) if self.how == "evict-oldest" else None

    def step_budget(self, step: Any) -> Any:
        if self.how == "no-prefill":
            return Budget(tokens=1, prefill_tokens=0)
        return {"tokens": -5} if self.how == "nonsense" else Budget(tokens=10**9)

    def admit(self, view: Any, step: Any) -> Any:
        if self.how == "defer":
            return Admission(Verdict.DEFER, "never")
        if self.how == "reject-some" and view.seq % 5 == 0:
            return Admission(Verdict.REJECT, "unlucky")
        return ADMIT if self.how != "nonsense" else True

    def on_events(self, events: Any) -> Any:
        if self.how == "raise":
            raise ValueError("no")


HOSTILE = (
    "raise",
    "raise-dynamic",
    "nan",
    "nonsense",
    "starve-odd",
    "evict-oldest",
    "no-prefill",
    "defer",
    "reject-some",
)
HONEST = (
    "naive",
    "static",
    "continuous-chunked",
    "latency",
    "fair",
    {"order": "shortest_first", "victim": "least_computed"},
    {"order": "longest_prefix", "victim": "lowest_priority"},
    {"order": "deadline", "chunking": {"name": "fixed", "tokens": 7}},
    {"order": "priority"},
)


class Lives(RuleBasedStateMachine):
    """A subclass says which harness it runs in."""

    make_harness: Callable[..., Any]

    @initialize(
        policy=st.sampled_from(HONEST + HOSTILE),
        blocks=st.integers(6, 40),
        rows=st.integers(1, 6),
        caching=st.booleans(),
        reserve=st.booleans(),
    )
    def start(self, policy: Any, blocks: int, rows: int, caching: bool, reserve: bool) -> None:
        self.h = self.make_harness(
            Hostile(policy) if policy in HOSTILE else policy,
            num_blocks=blocks,
            max_num_seqs=rows,
            enable_prefix_caching=caching,
            reserve_full_prompt=reserve,
            max_num_batched_tokens=200,
            max_wait_s=20.0,
        )
        self.requests: list[Request] = []

    @rule(
        shared=st.integers(0, 30),
        own=st.integers(1, 40),
        max_tokens=st.integers(1, 30),
        tenant=st.sampled_from(["a", "b", "c"]),
        priority=st.integers(-2, 2),
        siblings=st.integers(0, 2),
    )
    def add(self, shared: int, own: int, max_tokens: int, tenant: str, priority: int, siblings: int) -> None:
        prompt = [*range(200, 200 + shared), *([300 + len(self.requests)] * own)]
        parent = f"p{len(self.requests)}"
        try:
            fields = {"max_tokens": max_tokens, "tenant": tenant, "priority": priority}
            first = self.h.add(prompt, id=parent, deadline_s=self.h.now + own, **fields)
            self.requests.append(first)
            for _ in range(siblings):
                self.requests.append(self.h.add(prompt, fork_of=parent, **fields))
        except RequestError:
            assert len(prompt) >= self.h.params.max_length

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 10**6))
    def abort(self, which: int) -> None:
        self.h.scheduler.abort(self.requests[which % len(self.requests)], self.h.now)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.h.step()

    @rule()
    def wait(self) -> None:
        self.h.now += 30.0

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "h"):
            self.h.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "h"):
            return
        self.h.drain()
        scheduler = self.h.scheduler
        scheduler.check_integrity()
        assert scheduler.kv.num_free == self.h.params.num_blocks
        assert scheduler.rows.num_free == self.h.params.max_num_seqs
        assert all(r.state is State.FINISHED for r in self.requests)
        for request in self.requests:
            told = scheduler.ledger.explain(request.id)["events"]
            drawn = sum(event["event"] == "token" or event.get("drew", False) for event in told)
            assert drawn == len(request.output), "the ledger told another number of tokens"


def test_random_lives(harness: Any) -> None:
    case = type("LivesHere", (Lives,), {"make_harness": staticmethod(harness)}).TestCase
    case.settings = settings(
        max_examples=150,
        stateful_step_count=30,
        deadline=None,
        phases=(Phase.generate,),
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    case("runTest").runTest()


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_policies_are_counted_and_everybody_ends(harness: Any, how: str) -> None:
    h = harness(Hostile(how), num_blocks=20, max_num_seqs=4, max_wait_s=5.0)
    requests = [h.add(6 + i, max_tokens=10) for i in range(12)]
    h.drain()
    assert all(r.state is State.FINISHED for r in requests)
    if how not in ("starve-odd", "reject-some", "evict-oldest"):
        assert h.scheduler.guard.faults > 0
    if how in ("raise", "nonsense"):  # at fault in every step
        assert not h.scheduler.guard.enabled


@pytest.mark.parametrize("policy", [p for p in HONEST if isinstance(p, str)])
def test_same_seed_same_schedule(harness: Any, policy: str) -> None:
    def run() -> list[tuple[Any, ...]]:
        rng = random.Random(7)
        h = harness(policy, num_blocks=24, max_num_seqs=5, max_num_batched_tokens=200)
        for _ in range(60):
            if rng.random() < 0.5:
                h.add(rng.randint(1, 60), max_tokens=rng.randint(1, 20), tenant=rng.choice("ab"))
            h.step()
        h.drain()
        return [(p.rows.tolist(), p.starts.tolist(), p.num_tokens.tolist(), p.padding) for p in h.plans]

    assert run() == run()


def test_content_does_not_depend_on_the_policy(harness: Any) -> None:
    outputs = []
    for policy in HONEST:
        h = harness(policy, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=200)
        rng = np.random.default_rng(3)
        requests = [
            h.add(rng.integers(2, 90, int(rng.integers(1, 50))).tolist(), max_tokens=int(rng.integers(1, 15)))
            for _ in range(15)
        ]
        h.drain()
        outputs.append([r.output for r in requests])
    assert all(output == outputs[0] for output in outputs)

"""The virtual token counter, against the bound of arXiv 2401.00588 (theorem 4.4) in the real scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft.core.request import Request, SamplingParams
from camshaft.core.schedule.params import SchedulerParams
from camshaft.core.schedule.plan import StepResult
from camshaft.core.schedule.scheduler import Scheduler
from camshaft.policies.base import Events
from camshaft.policies.order.fair_share import FairShare
from camshaft.policies.registry import load_policy

INPUT, OUTPUT = 1.0, 2.0
PROMPT, TOKENS = 40, 30


class Load:
    """Requests of two tenants through a scheduler; counts the weighted service each receives."""

    def __init__(self, shares: dict[str, float] | None = None) -> None:
        order = {"name": "fair_share", "input_weight": INPUT, "output_weight": OUTPUT}
        self.params = SchedulerParams(
            num_blocks=60,
            block_size=16,
            max_model_len=256,
            max_num_seqs=6,
            max_num_batched_tokens=64,
            enable_prefix_caching=False,
            max_wait_s=1e9,
        )
        policy = load_policy({"order": {**order, "shares": shares or {}}, "victim": "least_computed"})
        self.scheduler = Scheduler(self.params, policy.build())
        self.served = {"a": 0.0, "b": 0.0}
        self.now = 0.0
        self.number = 0

    def add(self, tenant: str, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            prompt = np.full(PROMPT, self.number, dtype=np.int32)
            params = SamplingParams(max_tokens=TOKENS)
            self.scheduler.add(
                Request(f"{tenant}{self.number}", prompt, params, self.now, tenant=tenant), self.now
            )

    def step(self) -> None:
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        if plan is None:
            return
        for row, start, count, samples in zip(
            plan.rows.tolist(),
            plan.starts.tolist(),
            plan.num_tokens.tolist(),
            plan.samples.tolist(),
            strict=True,
        ):
            tenant = self.scheduler.rows.request(row).tenant
            prompt = max(0, min(count, PROMPT - start))
            self.served[tenant] += INPUT * prompt + OUTPUT * samples
        rows = plan.rows[plan.samples]
        self.scheduler.update(StepResult(plan.step, rows, np.full(len(rows), 9, np.int32), 1.0), self.now)

    def waits(self, tenant: str) -> bool:
        return any(request.tenant == tenant for request in self.scheduler.waiting)


def bound(load: Load) -> float:
    """2 max(w_in * longest prompt, w_out * tokens that the cache holds)."""
    cache = load.params.num_blocks * load.params.block_size
    return 2 * max(INPUT * PROMPT, OUTPUT * cache)


def test_backlogged_tenants_are_served_alike_however_much_one_asks() -> None:
    load = Load()
    load.add("a", 400)
    load.add("b", 40)
    gaps = []
    while load.waits("b"):
        load.step()
        gaps.append(abs(load.served["a"] - load.served["b"]))
    assert max(gaps) <= bound(load)
    assert max(gaps) <= 4 * (PROMPT * INPUT + TOKENS * OUTPUT)  # and far inside it here
    assert load.served["b"] > 3000


def test_idling_saves_nothing_up() -> None:
    load = Load()
    load.add("a", 300)
    for _ in range(300):
        load.step()
    before = dict(load.served)
    load.add("b", 200)
    for _ in range(200):
        load.step()
    gained = {tenant: load.served[tenant] - before[tenant] for tenant in "ab"}
    assert abs(gained["a"] - gained["b"]) <= bound(load)
    assert gained["a"] > 0.3 * gained["b"]


def test_shares_weigh_the_service() -> None:
    load = Load(shares={"a": 3.0})
    load.add("a", 300)
    load.add("b", 300)
    for _ in range(400):
        load.step()
    assert load.served["a"] / load.served["b"] == pytest.approx(3.0, rel=0.2)


def test_nobody_is_idle_while_somebody_waits() -> None:
    load = Load()
    load.add("a", 50)
    while load.scheduler.has_work:
        load.step()
    total = 50 * (PROMPT * INPUT + TOKENS * OUTPUT)
    assert load.served == {"a": total, "b": 0.0}


def test_a_tenant_that_returns_alone_starts_where_the_last_one_left() -> None:
    order = FairShare()

    class View:
        def __init__(self, tenant: str) -> None:
            self.tenant = tenant

    def events(**parts: object) -> Events:
        none = np.empty(0, np.int32)
        fields = {"tenants": (), "tenant_codes": none, "prefill_tokens": none, "decode_tokens": none, **parts}
        return Events(now_s=0.0, **fields)  # type: ignore[arg-type]

    one = np.array([0], np.int32)
    order.on_events(events(arrived=(View("a"),)))
    work = {"tenants": ("a",), "tenant_codes": one, "prefill_tokens": one + 100, "decode_tokens": one}
    order.on_events(events(finished=(View("a"),), **work))
    order.on_events(events(arrived=(View("b"),)))
    assert order.counter("b") == order.counter("a") == 100


def test_tenants_without_end_are_forgotten_and_nobody_gains_by_it() -> None:
    """A thousand names come once each beside one that stays; who comes back finds what it had left."""

    class Visitor:
        def __init__(self, tenant: str) -> None:
            self.tenant = tenant

    def events(arrived: str = "", ran: dict[str, int] | None = None, finished: str = "") -> Events:
        names, tokens = tuple(ran or ()), np.array(list((ran or {}).values()), np.int32)
        codes, none = np.arange(len(names), dtype=np.int32), np.zeros(len(names), np.int32)
        views: list[Any] = [tuple([Visitor(name)] if name else []) for name in (arrived, finished)]
        return Events(0.0, names, codes, tokens, none, arrived=views[0], finished=views[1])

    order, kept = FairShare(), FairShare()
    kept._forget_at = 10**9
    for each in (order, kept):
        each.on_events(events("heavy", {"heavy": 10**6}, "heavy"))
        each.on_events(events("steady"))
        for number in range(1000):
            name = f"visitor {number}"
            each.on_events(events(name, {name: 5, "steady": 10}, name))
        for name in ("visitor 3", "heavy", "visitor 999"):
            each.on_events(events(name))
    for name in ("steady", "visitor 3", "heavy", "visitor 999"):
        assert order.counter(name) == kept.counter(name)
    assert len(order._counters) < 300 < len(kept._counters)

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from camshaft.policies.base import StepSample, Verdict
from camshaft.policies.batching.single import Single
from camshaft.policies.batching.static import Static
from camshaft.policies.chunking.adaptive import Adaptive
from camshaft.policies.chunking.fixed import Fixed
from camshaft.policies.chunking.off import Off
from camshaft.policies.order.deadline import Deadline
from camshaft.policies.order.fcfs import Fcfs
from camshaft.policies.order.longest_prefix import LongestPrefix
from camshaft.policies.order.priority import Priority
from camshaft.policies.order.shortest_first import ShortestFirst
from camshaft.policies.victim.latest import Latest
from camshaft.policies.victim.least_computed import LeastComputed
from camshaft.policies.victim.lowest_priority import LowestPriority

Make = Callable[..., Any]


def ordered(part: Any, views: list[Any], step: Any) -> list[int]:
    return [v.seq for v in sorted(views, key=lambda v: (part.key(v, step), v.seq))]


def test_orders(view: Make, step: Make) -> None:
    now = step(now_s=10.0)
    views = [
        view(0, prompt_tokens=900, priority=1, arrival_s=9.0),
        view(1, prompt_tokens=100, deadline_s=50.0, arrival_s=9.5),
        view(2, prompt_tokens=900, cached_tokens=850, deadline_s=20.0, priority=-1, arrival_s=10.0),
    ]
    assert ordered(Fcfs(), views, now) == [0, 1, 2]
    assert ordered(Priority(), views, now) == [2, 1, 0]
    assert ordered(Deadline(), views, now) == [2, 1, 0]
    assert ordered(LongestPrefix(), views, now) == [2, 0, 1]
    assert ordered(ShortestFirst(aging_tokens_per_s=0), views, now) == [2, 1, 0]


def test_shortest_first_counts_what_is_missing_and_ages(view: Make, step: Make) -> None:
    part = ShortestFirst(aging_tokens_per_s=100, granularity_tokens=64)
    long, short = view(0, prompt_tokens=1000, arrival_s=0.0), view(1, prompt_tokens=100, arrival_s=20.0)
    cached = view(2, prompt_tokens=1000, cached_tokens=990, arrival_s=20.0)
    assert ordered(part, [view(0, prompt_tokens=1000, arrival_s=20.0), short], step(now_s=20.0)) == [1, 0]
    assert ordered(part, [long, short], step(now_s=20.0)) == [0, 1]
    assert part.key(cached, step(now_s=20.0)) < part.key(short, step(now_s=20.0))


def test_victims(view: Make, step: Make) -> None:
    views = [
        view(0, computed_tokens=50, priority=5),
        view(1, computed_tokens=10, priority=0),
        view(2, computed_tokens=90, priority=5),
    ]
    now = step()
    first = [
        min(views, key=lambda v, p=p: (p.key(v, now), -v.seq)).seq
        for p in (Latest(), LeastComputed(), LowestPriority())
    ]
    assert first == [2, 1, 0]


def test_fixed_and_off(step: Make) -> None:
    now = step(max_num_batched_tokens=512)
    assert Fixed().budget(now).tokens == 512
    assert Fixed(tokens=100, prompt_share=0.5).budget(now).chunk_tokens == 50
    assert Fixed(tokens=10_000).budget(now).tokens == 512
    assert not Off().budget(now).chunked


def test_single_takes_one_even_when_asked_twice_in_a_step(view: Make, step: Make) -> None:
    part = Single()
    now = step()
    assert part.admit(view(0), now).verdict is Verdict.ADMIT
    assert part.admit(view(1), now).verdict is Verdict.DEFER
    assert part.admit(view(1), step(num_running=1)).verdict is Verdict.DEFER
    assert part.admit(view(1), step()).verdict is Verdict.ADMIT


def test_static_fills_then_closes(view: Make, step: Make) -> None:
    part = Static(fill_timeout_ms=100)
    admit = lambda now: part.admit(view(), now).verdict  # noqa: E731
    assert admit(step(num_waiting=2, oldest_wait_s=0.05)) is Verdict.DEFER
    assert admit(step(num_waiting=4)) is Verdict.ADMIT
    assert admit(step(num_waiting=2, num_running=3)) is Verdict.ADMIT
    assert admit(step(num_waiting=2, num_running=3, num_decoding=1)) is Verdict.DEFER
    assert admit(step(num_waiting=2, num_running=3)) is Verdict.DEFER
    assert admit(step(num_waiting=1, oldest_wait_s=0.2)) is Verdict.ADMIT


def cost_ms(prefill: int, decodes: int, context: int) -> float:
    return 3.0 + 0.05 * prefill + 0.2 * decodes + 0.002 * context


@pytest.mark.parametrize("target_ms", [20.0, 40.0])
def test_adaptive_learns_the_device_and_holds_its_target(step: Make, target_ms: float) -> None:
    part, rng = Adaptive(itl_target_ms=target_ms, headroom=1.0), random.Random(1)
    last: StepSample | None = None
    times: list[float] = []
    for number in range(300):
        decodes, context = rng.randint(1, 40), rng.randint(100, 2000)
        now = step(
            step=number, num_decoding=decodes, decode_context_tokens=context, last=last,
            max_num_batched_tokens=4096,
        )  # fmt: skip
        budget = part.budget(now)
        assert budget.prefill_tokens is not None
        spent = cost_ms(budget.prefill_tokens, decodes, context)
        last = StepSample(budget.prefill_tokens, decodes, context, spent * rng.uniform(0.98, 1.02))
        times.append(spent)
    settled = sorted(times[50:])
    assert target_ms * 0.9 < settled[len(settled) // 2] < target_ms * 1.1
    assert settled[int(len(settled) * 0.99)] < target_ms * 1.15


def test_adaptive_gives_prompts_everything_when_nobody_decodes_and_never_nothing(step: Make) -> None:
    part = Adaptive(itl_target_ms=1.0, min_prompt_tokens=16)
    budget = part.budget(step())
    assert budget.prefill_tokens is None
    for number in range(20):
        sample = StepSample(10 * number, 1 + number % 3, 100 * number, cost_ms(10 * number, 1, 100 * number))
        budget = part.budget(step(num_decoding=4, last=sample))
    assert budget.prefill_tokens == 16

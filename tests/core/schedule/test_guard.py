"""Whatever a third party's policy raises or answers, every request ends and the engine lives."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from camshaft.core.request import State
from camshaft.core.schedule.guard import Guard
from camshaft.policies.base import ADMIT, Admission, Budget, Verdict

CALLS = ("order_key", "victim_key", "step_budget", "admit", "on_events")


class Unspeakable(Exception):
    """Its own message raises, and so does everything else."""

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __bool__ = __eq__ = __str__  # type: ignore[assignment]
    __hash__ = Exception.__hash__


class Incomparable(int):
    def __lt__(self, other: object) -> bool:
        raise RuntimeError("lt")

    __gt__ = __eq__ = __lt__  # type: ignore[assignment]
    __hash__ = int.__hash__


class Third:
    """A policy without opinions, but for one call that gives `answer`, or raises it."""

    name, dynamic, accounts = "third", True, True

    def __init__(self, call: str, answer: Any) -> None:
        def give(*_: Any) -> Any:
            if isinstance(answer, BaseException) and not isinstance(answer, Unspeakable):
                raise answer
            return answer

        setattr(self, call, give)

    def order_key(self, view: Any, step: Any) -> Any:
        return ()

    victim_key = order_key

    def step_budget(self, step: Any) -> Any:
        return Budget(step.max_num_batched_tokens)

    def admit(self, view: Any, step: Any) -> Any:
        return ADMIT

    def on_events(self, events: Any) -> Any:
        return None


RAISED = [
    (call, error)
    for call in CALLS
    for error in (ValueError("x"), SystemExit(3), GeneratorExit(), Unspeakable())
]
KEYS = [None, [1], (float("nan"),), ("a",), (1j,), ((1,),), (Incomparable(3),), (10**400,), Unspeakable()]
WRONG: Any = Unspeakable()
BUDGETS = [
    None,
    (1,),
    Budget(0),
    Budget(-1),
    Budget(True),
    Budget(WRONG),
    Budget(5, -1),
    Budget(5, pad=WRONG),
]
ADMISSIONS = [
    None,
    "admit",
    Verdict.ADMIT,
    Admission(WRONG),
    Admission(Verdict.REJECT, WRONG),
    Admission(Verdict.REJECT, "no \ud800"),  # no message to the client could hold it
]
FAULTY = [
    *RAISED,
    *(("order_key", key) for key in KEYS),
    *(("victim_key", key) for key in KEYS),
    *(("step_budget", budget) for budget in BUDGETS),
    *(("admit", admission) for admission in ADMISSIONS),
    ("on_events", 5),
]
ALLOWED = [
    ("order_key", (2**63 - 1,)),
    ("order_key", (np.int64(3), np.float32(2.5))),
    ("victim_key", (float("-inf"), True)),
    ("step_budget", Budget(10**30)),
    ("step_budget", Budget(1)),
    ("step_budget", Budget(100, prefill_tokens=0)),
    ("step_budget", Budget(100, chunk_tokens=0)),
    ("step_budget", Budget(8, chunked=False, decode_first=False, pad=True)),
]


def served(harness: Callable[..., Any], call: str, answer: Any) -> Guard:
    """The guard after a load that needs more blocks than there are has ended under such a policy."""
    h = harness(Third(call, answer), num_blocks=12, max_num_seqs=4)
    requests = [h.add(3 + i * 5 % 17, max_tokens=6, tenant="ab"[i % 2]) for i in range(10)]
    h.drain()
    assert all(request.state is State.FINISHED for request in requests)
    h.scheduler.check_integrity()
    return h.scheduler.guard


@pytest.mark.parametrize(("call", "answer"), FAULTY)
def test_a_fault_costs_the_policy_its_say_and_nobody_else(
    harness: Callable[..., Any], call: str, answer: Any
) -> None:
    assert served(harness, call, answer).faults


@pytest.mark.parametrize(("call", "answer"), ALLOWED)
def test_an_odd_answer_is_taken(harness: Callable[..., Any], call: str, answer: Any) -> None:
    assert served(harness, call, answer).enabled


def test_why_a_policy_refuses_is_kept_for_who_asks(harness: Callable[..., Any]) -> None:
    h = harness(Third("admit", Admission(Verdict.REJECT, "too long for this server")))
    request = h.add(9, max_tokens=2)
    h.drain()
    told = h.scheduler.ledger.explain(request.id)
    assert (told["finish_reason"], told["why"]) == ("rejected", "too long for this server")


def test_a_policy_without_a_usable_name_has_its_class_s() -> None:
    class Nameless(Third):
        name = property(lambda self: 1 // 0)  # type: ignore[assignment]

    with capture_logs() as lines:
        guard = Guard(Nameless("admit", ADMIT))  # type: ignore[arg-type]
    assert (guard.name, guard.faults) == ("Nameless", 1)
    (line,) = lines
    assert re.fullmatch(rf"ZeroDivisionError: .* \({re.escape(__file__)}:\d+\)", line["fault"])


def test_answers_that_differ_from_call_to_call_can_be_ordered(harness: Callable[..., Any]) -> None:
    """numpy's floats raise where they meet an int beyond them."""
    numbers = (10**400, np.float64(1), -(10**400), np.float32("inf"), 5, True, np.int32(3), float("-inf"))
    third = Third("on_events", None)
    third.order_key = third.victim_key = lambda view, step: (numbers[(view.seq + step.step) % len(numbers)],)
    h = harness(third, num_blocks=12, max_num_seqs=4)
    requests = [h.add(3 + i * 5 % 17, max_tokens=6) for i in range(16)]
    h.drain()
    assert all(request.state is State.FINISHED for request in requests)
    assert h.scheduler.guard.faults


def test_faults_now_and_then_do_not_flood_the_log(harness: Callable[..., Any]) -> None:
    third = Third("on_events", None)
    third.step_budget = lambda step: None if step.step % 2 else Budget(step.max_num_batched_tokens)
    h = harness(third, max_num_seqs=4)
    with capture_logs() as lines:
        for _ in range(20):
            h.add(3, max_tokens=20)
        h.drain()
    assert h.scheduler.guard.faults > 40
    assert 1 < len(lines) < 10


def test_a_key_press_ends_the_engine(harness: Callable[..., Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        served(harness, "order_key", KeyboardInterrupt())

"""Steps that the device had no memory for are taken back, and smaller ones take their place."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..request import FINISH_ERROR, Request
from .ledger import Blocked, StepRecord
from .scheduler import Scheduler

_NONE = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Relief:
    """How large a step may be after one ran out of memory: half of it, and twice as much after each good run."""

    largest_tokens: int  # of a step in good times
    limit: int | None = None
    out_of_memory: int = 0  # steps that failed since start
    _good: int = 0
    _attempts: int = 0  # at the smallest step, one after the other

    GOOD_RUN = 64  # steps
    ATTEMPTS = 3

    def failed(self, tokens: int) -> bool:
        """A step of so many tokens failed. True if there is no smaller one left to try."""
        self.out_of_memory += 1
        self._good = 0
        self.limit = max(1, tokens // 2)
        self._attempts = self._attempts + 1 if tokens == 1 else 0
        return self._attempts >= self.ATTEMPTS

    def succeeded(self) -> bool:
        """A step came back. True if that raised the limit."""
        self._attempts = 0
        if self.limit is None:
            return False
        self._good += 1
        if self._good < self.GOOD_RUN:
            return False
        self._good = 0
        self.limit = None if self.limit * 2 >= self.largest_tokens else self.limit * 2
        return True


@dataclass(slots=True)
class Retreat:
    """Who made room for a smaller step."""

    evicted: list[int] = field(default_factory=list)  # arrival numbers
    given_up: list[Request] = field(default_factory=list)


def take_back(scheduler: Scheduler, now_s: float, limit: int | None, why: str | None = None) -> Retreat:
    """Takes the newest planned step back, as it was not launched: its tokens are still to be computed.

    From now on a step has `limit` tokens at most, and whoever runs beyond so many sequences gives way. With
    `why` the members of the step end with that error instead.
    """
    flight = scheduler.in_flight.pop()
    plan, running = flight.plan, scheduler.running
    same = running.rows.seq[plan.rows] == flight.seqs
    begun = np.arange(len(plan.rows)) >= plan.num_decodes
    running.retreat(plan.rows[same], plan.starts[same], plan.samples[same])
    running.demote(plan.rows[same & begun & plan.samples])
    scheduler.token_limit = limit
    retreat = Retreat()
    view = scheduler.step_view(now_s)
    if why is not None:
        for row in plan.rows[same].tolist():
            request = running.rows.request(row)
            request.error = why
            scheduler.departures.finish(request, FINISH_ERROR, now_s)
            retreat.given_up.append(request)
    while limit is not None and len(running) > limit:
        victim = scheduler.departures.victim(view)
        scheduler.departures.evict(victim, view)
        retreat.evicted.append(victim.seq)
    _record(scheduler, now_s, 1, retreat)
    return retreat


def start_over(scheduler: Scheduler, now_s: float, limit: int | None, why: str | None = None) -> Retreat:
    """A launched step came to nothing, so what the device holds is in doubt: every running request gives way
    and is computed again from its tokens, and no block of the cache is reused. Otherwise as `take_back`.
    """
    steps = len(scheduler.in_flight)
    members = set(scheduler.in_flight[0].seqs.tolist())
    scheduler.in_flight.clear()
    running, view = scheduler.running, scheduler.step_view(now_s)
    scheduler.token_limit = limit
    retreat = Retreat()
    for row in running.all_rows():
        request = running.rows.request(row)
        running.rows.computed[row] = 0
        if why is not None and request.seq in members:
            request.error = why
            scheduler.departures.finish(request, FINISH_ERROR, now_s)
            retreat.given_up.append(request)
        else:
            scheduler.departures.evict(request, view)
            retreat.evicted.append(request.seq)
    scheduler.kv.prefix.clear()
    _record(scheduler, now_s, steps, retreat)
    return retreat


def _record(scheduler: Scheduler, now_s: float, steps: int, retreat: Retreat) -> None:
    waiting = len(scheduler.waiting)
    evicted = tuple(retreat.evicted)
    record = StepRecord(scheduler.step - 1, now_s, waiting, Blocked.NO_MEMORY, evicted=evicted)
    scheduler.ledger.undone(steps, record)

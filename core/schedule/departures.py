"""Who leaves: for good, or evicted to wait again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...policies.base import Key, StepView
from ..request import Request, State
from .accounting import Accounts
from .guard import Guard
from .running import Running
from .siblings import Siblings
from .views import View
from .waiting import WaitingQueue

MAX_EVICTIONS = 8  # a request evicted so often is spared while another can give way


@dataclass(slots=True)
class Departures:
    """Takes requests out of where they stand. `views` are what policies see of each that has not ended."""

    guard: Guard
    running: Running
    waiting: WaitingQueue
    siblings: Siblings
    accounts: Accounts
    views: dict[int, View] = field(default_factory=dict)
    preemptions: int = 0

    def key_of(self, step: StepView) -> Callable[[Request], Key]:
        """The policy's order at a step."""
        return lambda request: self.guard.order_key(self.views[request.seq], step)

    def victim(self, step: StepView) -> Request:
        """The running request that the policy would have give way first."""
        running = [self.running.rows.request(row) for row in self.running.all_rows()]
        spared = [request for request in running if request.preemptions < MAX_EVICTIONS]
        candidates = spared or running
        return min(
            candidates,
            key=lambda request: (self.guard.victim_key(self.views[request.seq], step), -request.seq),
        )

    def evict(self, victim: Request, step: StepView) -> None:
        """Takes row and blocks from a running request; it keeps its place in arrival order."""
        self.running.leave(victim)
        victim.to(State.EVICTED)
        victim.preemptions += 1
        victim.queued_s = step.now_s
        self.preemptions += 1
        self.accounts.preempted(self.views[victim.seq])
        self.waiting.push(victim, self.key_of(step))

    def finish(self, request: Request, reason: str, now_s: float) -> None:
        """Ends a request that runs or waits, and frees what it holds."""
        if request.state is State.RUNNING:
            self.running.leave(request)
        else:
            self.waiting.remove(request)
        request.to(State.FINISHED)
        request.finish_reason = reason
        request.finished_s = now_s
        self.accounts.finished(self.views.pop(request.seq))
        self.siblings.remove(request)

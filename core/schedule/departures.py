"""Who leaves: for good, or evicted to wait again."""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.base import StepView
from ..request import Request, State
from .accounting import Accounts
from .guard import Guard
from .running import Running
from .siblings import Siblings
from .views import Views
from .waiting import WaitingQueue

MAX_EVICTIONS = 8  # a request evicted so often is spared while another can give way


@dataclass(slots=True)
class Departures:
    """Takes requests out of where they stand."""

    guard: Guard
    views: Views
    running: Running
    waiting: WaitingQueue
    siblings: Siblings
    accounts: Accounts
    preemptions: int = 0

    def victim(self, step: StepView) -> Request:
        """The running request that the policy would have give way first."""
        running = [self.running.rows.request(row) for row in self.running.all_rows()]
        spared = [request for request in running if request.preemptions < MAX_EVICTIONS]
        candidates = spared or running
        return min(
            candidates,
            key=lambda request: (self.guard.victim_key(self.views[request], step), -request.seq),
        )

    def evict(self, victim: Request, step: StepView) -> None:
        """Takes row and blocks from a running request; it keeps its place in arrival order."""
        self.running.leave(victim)
        victim.to(State.EVICTED)
        victim.preemptions += 1
        victim.queued_s = step.now_s
        self.preemptions += 1
        self.accounts.preempted(self.views[victim])
        self.waiting.push(victim, self.views.key_of(step))

    def finish(self, request: Request, reason: str, now_s: float) -> None:
        """Ends a request that runs or waits, and frees what it holds."""
        if request.state is State.RUNNING:
            self.running.leave(request)
        else:
            self.waiting.remove(request)
        request.to(State.FINISHED)
        request.finish_reason = reason
        request.finished_s = now_s
        self.accounts.finished(self.views.pop(request))
        self.siblings.remove(request)

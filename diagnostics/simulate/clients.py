"""The way from the clients to the engine's queue: when each request of a workload reaches it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from ...core.workload import Workload, WorkloadRequest
from ..feeder import Feeder


@dataclass(slots=True)
class Frontend:
    """The HTTP processes between clients and engine: a fixed latency, and processor time that can run out.

    Each request and each streamed token takes processor time; when there is more of it than there are
    processes, what arrives waits behind what went out.
    """

    latency_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0
    processes: float = 1.0  # a share, where several engines use them
    free_at_s: float = 0.0
    busy_s: float = 0.0

    def fresh(self) -> Frontend:
        """The same, at the start of a run."""
        return Frontend(self.latency_s, self.request_s, self.token_s, self.processes)

    def accept(self, sent_s: float) -> float:
        """When a request sent at `sent_s` is in the engine's queue."""
        started = max(sent_s, self.free_at_s)
        self._spend(started, self.request_s)
        return started + self.latency_s + self.request_s

    def stream(self, now_s: float, tokens: int) -> float:
        """Takes the tokens of a step that ended at `now_s`; seconds until the last of them is sent."""
        if not self.token_s:
            return 0.0
        started = max(now_s, self.free_at_s)
        self._spend(started, tokens * self.token_s)
        return self.free_at_s - now_s

    def _spend(self, started_s: float, seconds: float) -> None:
        share = seconds / self.processes
        self.free_at_s = started_s + share
        self.busy_s += share


@dataclass(slots=True)
class Clients:
    """Sends a workload's requests through a front end."""

    workload: Workload
    frontend: Frontend
    start_s: float | None = None  # when the first ones were sent
    _feeder: Feeder = field(init=False, repr=False)
    _wire: list[tuple[float, int, float, WorkloadRequest]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._feeder = Feeder(self.workload)

    def take(self, now_s: float) -> list[tuple[WorkloadRequest, float]]:
        """Requests that have reached the engine by `now_s`, with the time each was sent."""
        self._send(now_s)
        arrived = []
        while self._wire and self._wire[0][0] <= now_s:
            _, _, sent_s, request = heapq.heappop(self._wire)
            arrived.append((request, sent_s))
        return arrived

    def next_s(self) -> float | None:
        """When the next request is sent or reaches the engine if nothing ends before; None if none will."""
        times = [self._wire[0][0]] if self._wire else []
        upcoming = self._feeder.next_s()
        if upcoming is not None:
            times.append(upcoming)
        return min(times, default=None)

    def ended(self, request: WorkloadRequest, now_s: float) -> None:
        """A request has ended: its client sends the next one, its follower thinks first."""
        self._feeder.finished(request, now_s)
        self._send(now_s)

    def _send(self, now_s: float) -> None:
        for request in self._feeder.due(now_s):
            sent_s = self._feeder.start_s(request, now_s)
            self.start_s = sent_s if self.start_s is None else self.start_s
            heapq.heappush(self._wire, (self.frontend.accept(sent_s), request.index, sent_s, request))

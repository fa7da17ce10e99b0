"""The clients of a simulation: when each request of a workload reaches the engine."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core.workload import Workload, WorkloadRequest


@dataclass(slots=True)
class Frontend:
    """The HTTP processes between clients and engine: a fixed latency, and processor time that can run out.

    Each request and each streamed token takes processor time; when there is more of it than there are
    processes, what arrives waits behind what went out.
    """

    latency_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0
    processes: float = 1.0
    free_at_s: float = 0.0
    busy_s: float = 0.0

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
    """Sends a workload's requests: at their times, when a client is free, or after another has ended."""

    workload: Workload
    frontend: Frontend
    _source: Iterator[WorkloadRequest] = field(init=False, repr=False)
    _due: list[tuple[float, int, float, WorkloadRequest]] = field(default_factory=list, repr=False)
    _followers: dict[int, list[WorkloadRequest]] = field(default_factory=dict, repr=False)
    _ended: dict[int, float] = field(default_factory=dict, repr=False)
    _next: WorkloadRequest | None = field(init=False, repr=False)
    _free_clients: int = field(init=False)

    def __post_init__(self) -> None:
        self._source = self.workload.requests()
        self._next = next(self._source, None)
        self._free_clients = self.workload.concurrency or 0
        self._release(0.0)

    def take(self, now_s: float) -> list[tuple[WorkloadRequest, float]]:
        """Requests that have reached the engine by `now_s`, with the time each was sent."""
        self._release(now_s)
        arrived = []
        while self._due and self._due[0][0] <= now_s:
            _, _, sent_s, request = heapq.heappop(self._due)
            arrived.append((request, sent_s))
        return arrived

    def next_s(self) -> float | None:
        """When the next request reaches the engine if nothing ends before; None if none will."""
        if self._due:
            return self._due[0][0]
        if self._next is not None and self._next.arrival_s is not None:
            return self._next.arrival_s
        return None

    def ended(self, request: WorkloadRequest, now_s: float) -> None:
        """A request has ended: its follower thinks and sends, or its client sends the next one."""
        self._ended[request.index] = now_s
        followers = self._followers.pop(request.index, ())
        for follower in followers:
            self._send(follower, now_s + follower.think_s)
        if not followers:
            self._free_clients += 1
        self._release(now_s)

    def _release(self, now_s: float) -> None:
        """Moves requests from the source to the wire as far as times and free clients allow."""
        while self._next is not None:
            request = self._next
            if request.after >= 0:
                if request.after in self._ended:
                    self._send(request, self._ended[request.after] + request.think_s)
                else:
                    self._followers.setdefault(request.after, []).append(request)
            elif request.arrival_s is not None:
                if request.arrival_s > now_s:
                    return
                self._send(request, request.arrival_s)
            elif self._free_clients > 0:
                self._free_clients -= 1
                self._send(request, now_s)
            else:
                return
            self._next = next(self._source, None)

    def _send(self, request: WorkloadRequest, sent_s: float) -> None:
        heapq.heappush(self._due, (self.frontend.accept(sent_s), request.index, sent_s, request))

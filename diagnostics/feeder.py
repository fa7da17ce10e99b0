"""When each request of a load may start: by the clock, when a client is free, or after the turn before."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..core.workload import Workload, WorkloadRequest


class Feeder:
    """Hands out the requests of a load as they fall due. Times are seconds since the run began.

    In a closed loop a client takes the next request when its last one has ended; with sessions a client is
    a whole conversation. Requests are read from the workload as they are needed.
    """

    def __init__(self, workload: Workload) -> None:
        self._source: Iterator[WorkloadRequest] = workload.requests()
        self._next: WorkloadRequest | None = next(self._source, None)
        self._free = workload.concurrency  # free clients; None where arrivals have times
        self._timed: list[tuple[float, int, WorkloadRequest]] = []  # later turns whose time is known
        self._turns: dict[int, WorkloadRequest] = {}  # index of a request -> the turn that follows it
        self._open = 0

    @property
    def done(self) -> bool:
        """Whether everything has been handed out and has ended."""
        return self._open == 0 and self._next is None and not self._timed and not self._turns

    def due(self, now_s: float) -> list[WorkloadRequest]:
        """The requests that may start by now, in order."""
        ready: list[WorkloadRequest] = []
        while self._timed and self._timed[0][0] <= now_s:
            ready.append(heapq.heappop(self._timed)[2])
        while self._next is not None and self._may_start(self._next, now_s):
            request, self._next = self._next, next(self._source, None)
            self._read_turns()
            if self._free is not None:
                self._free -= 1
            ready.append(request)
        self._open += len(ready)
        return ready

    def start_s(self, request: WorkloadRequest, now_s: float) -> float:
        """When a request that is due arrived: its own time, or now for a client that was waited for."""
        return now_s if request.arrival_s is None else request.arrival_s

    def next_s(self) -> float | None:
        """When the next request falls due, if only the clock stands between; None if an end must come first."""
        times = [self._timed[0][0]] if self._timed else []
        if self._next is not None and self._next.arrival_s is not None:
            times.append(self._next.arrival_s)
        return min(times, default=None)

    def finished(self, request: WorkloadRequest, now_s: float) -> None:
        """A request ended, well or not; its client is free, or its next turn comes after thinking."""
        self._open -= 1
        follower = self._turns.pop(request.index, None)
        if follower is not None:
            heapq.heappush(self._timed, (now_s + follower.think_s, follower.index, follower))
        elif self._free is not None:
            self._free += 1

    def _may_start(self, request: WorkloadRequest, now_s: float) -> bool:
        if request.arrival_s is not None:
            return request.arrival_s <= now_s
        return self._free is None or self._free > 0

    def _read_turns(self) -> None:
        """Sets aside the turns that follow in the source: they start when the one before has ended."""
        while self._next is not None and self._next.after >= 0:
            self._turns[self._next.after] = self._next
            self._next = next(self._source, None)

"""The waiting requests: in the policy's order, and by how long they have waited."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice

from ...policies.base import Key
from ..request import Request

KeyOf = Callable[[Request], Key]


class WaitingQueue:
    """Static keys stand in a heap and are computed once; dynamic ones are asked again each time for a
    bounded window of candidates: the oldest ones, every tenant's among them.
    """

    def __init__(self, *, dynamic: bool, window: int) -> None:
        self._dynamic, self._window = dynamic, window
        self._by_age: OrderedDict[int, Request] = OrderedDict()  # seq -> request, longest waiting first
        self._heap: list[tuple[Key, int, Request]] = []
        self._by_tenant: dict[str, deque[Request]] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_age.values())

    def oldest(self) -> Request | None:
        """The request that has waited longest."""
        return next(iter(self._by_age.values()), None)

    def push(self, request: Request, key_of: KeyOf) -> None:
        self._by_age[request.seq] = request
        if self._dynamic:
            line = self._by_tenant.setdefault(request.tenant, deque())
            # One that is back from an eviction keeps its place in arrival order.
            if not line or line[-1].seq < request.seq:
                line.append(request)
            else:
                line.insert(next(i for i, other in enumerate(line) if other.seq > request.seq), request)
        else:
            heapq.heappush(self._heap, (key_of(request), request.seq, request))

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it stands; its entry in the heap goes when it surfaces."""
        if self._by_age.pop(request.seq, None) is not None and self._dynamic:
            line = self._by_tenant[request.tenant]
            line.remove(request)
            if not line:
                del self._by_tenant[request.tenant]
        if not self._by_age:
            self._heap.clear()
        elif len(self._heap) > 2 * len(self._by_age) + self._window:
            # Many have gone from behind those who wait.
            self._heap = [entry for entry in self._heap if entry[1] in self._by_age]
            heapq.heapify(self._heap)

    def candidates(self, key_of: KeyOf, overdue_s: float = -math.inf) -> Generator[Request]:
        """Waiting requests in the policy's order, at most a window of them; ahead of them the oldest, if it
        has waited since before `overdue_s`. Taking one out with `remove` while iterating is allowed.
        """
        oldest = self.oldest()
        overdue = oldest if oldest is not None and oldest.queued_s < overdue_s else None
        if overdue is not None:
            yield overdue
        with closing(self._in_order(key_of)) as ordered:
            for request in ordered:
                if request is not overdue:
                    yield request

    def _in_order(self, key_of: KeyOf) -> Generator[Request]:
        if self._dynamic:
            window = [(key_of(request), request.seq, request) for request in self._window_requests()]
            for _, _, request in sorted(window):
                yield request
            return
        passed: list[tuple[Key, int, Request]] = []
        try:
            while self._heap and len(passed) < self._window:
                entry = heapq.heappop(self._heap)
                if entry[1] not in self._by_age:
                    continue
                passed.append(entry)
                yield entry[2]
        finally:
            for entry in passed:
                if entry[1] in self._by_age:
                    heapq.heappush(self._heap, entry)

    def _window_requests(self) -> list[Request]:
        share = max(1, self._window // max(1, len(self._by_tenant)))
        return [request for line in self._by_tenant.values() for request in islice(line, share)]

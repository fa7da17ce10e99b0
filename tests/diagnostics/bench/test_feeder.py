"""Requests fall due as their load says, whoever drives it."""

from __future__ import annotations

import heapq
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.workload import WorkloadRequest, load_workload
from camshaft.diagnostics.feeder import Feeder

ARRIVALS: Any = st.one_of(
    st.builds(
        lambda c, n: {"kind": "closed", "concurrency": c, "requests": n},
        st.integers(1, 5),
        st.integers(1, 25),
    ),
    st.builds(
        lambda r, n: {"kind": "poisson", "rate": r, "requests": n}, st.floats(0.1, 20), st.integers(1, 25)
    ),
    st.builds(
        lambda c, n, t, w: {"kind": "sessions", "sessions": n, "turns": t, "think_s": w, **c},
        st.one_of(
            st.builds(lambda c: {"concurrency": c}, st.integers(1, 4)),
            st.builds(lambda r: {"rate": r}, st.floats(0.1, 9)),
        ),
        st.integers(1, 8),
        st.integers(1, 5),
        st.floats(0, 4),
    ),
)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(ARRIVALS, st.lists(st.floats(0.01, 5), min_size=1, max_size=7))
def test_everything_starts_once_in_time_and_within_the_clients(
    arrival: dict[str, Any], durations: list[float]
) -> None:
    workload = load_workload({"arrival": arrival, "input_tokens": 5, "output_tokens": 2})
    feeder, now = Feeder(workload), 0.0
    running: list[tuple[float, int, WorkloadRequest]] = []
    started: dict[int, float] = {}
    ended: dict[int, float] = {}
    while not feeder.done:
        for request in feeder.due(now):
            assert request.index not in started
            started[request.index] = now
            if request.arrival_s is not None:
                assert request.arrival_s <= now
            if request.after >= 0:
                assert now >= ended[request.after] + request.think_s
            end = now + durations[request.index % len(durations)]
            heapq.heappush(running, (end, request.index, request))
        if workload.concurrency is not None:
            assert len(running) <= workload.concurrency
        upcoming = feeder.next_s()
        moments = [m for m in (upcoming, running[0][0] if running else None) if m is not None]
        if not moments:
            break
        now = max(now, min(moments))
        while running and running[0][0] <= now:
            _, _, request = heapq.heappop(running)
            ended[request.index] = now
            feeder.finished(request, now)
    assert feeder.done
    assert len(started) == len(ended) == workload.count

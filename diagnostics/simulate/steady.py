"""A replay without its ends: whether work piles up in it, and how many requests a second a full server gets through."""

from __future__ import annotations

import math

from .replay import Replay

FULL = 0.9  # of the most that ran at once
FEWEST = 50  # requests done while the server was full: of fewer a rate says little


def settles(replayed: Replay) -> bool:
    """Whether no queue builds up, nor do requests that run: no more than by chance from the middle of the arrivals on."""
    if replayed.result.saturated:
        return False
    log = replayed.log
    last_s = max((record.arrival_s for record in replayed.records), default=0.0)
    ends, there = log.column("end_s"), log.column("running") + log.column("waiting")
    middle = there[(ends > 0.4 * last_s) & (ends <= 0.6 * last_s)]
    tail = there[(ends > 0.8 * last_s) & (ends <= last_s)]
    if not len(middle) or not len(tail):
        return True
    usual = float(middle.mean())
    return float(tail.mean()) <= 1.05 * usual + 2 * math.sqrt(usual)


def capacity_per_s(replayed: Replay) -> float | None:
    """Requests done a second while somebody waited and nearly the most ran; None where those are too few to say.

    Without the time in which the server fills and empties: that says how long the load was.
    """
    log = replayed.log
    running, ends = log.column("running"), log.column("end_s")
    full = ends[(running >= FULL * running.max(initial=0)) & (log.column("waiting") > 0)]
    if not len(full):
        return None
    start_s, end_s = float(full[0]), float(full[-1])
    done = sum(r.finished_s is not None and start_s < r.finished_s <= end_s for r in replayed.records)
    return done / (end_s - start_s) if done >= FEWEST else None

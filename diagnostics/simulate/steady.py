"""What a server carries for good, whatever the length of a replay: its rate when full, and whether a rate holds.

A server that starts empty is faster at first, for minutes where it is nearly full. So no replay from empty says
whether work piles up: what a full server gets through does, and shares of good requests leave the start out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...core.workload import Workload
from ..results import Targets
from .replay import Replay

ARRIVALS_S = 40.0  # of a load at a rate
FEWEST, MOST = (
    120,
    1200,
)  # requests of it: enough to tell a share of good ones, and each takes a millisecond or two
FEWEST_SESSIONS = 24  # of conversations, each of which is many requests
OPENING_S = 15.0  # of arrivals, played first: most rates that miss the targets are seen to
WARM_UP = 0.25  # of the arrivals at a rate
GENERATIONS = 4  # of requests that run at once, which a full server is watched for
FIRST_CROWD, LARGEST_CROWD = 64, 8000  # of requests
LARGEST_CROWD_TOKENS = 40_000_000

Play = Callable[[Workload], Replay]


def at_rate(load: Workload, rate_per_s: float, for_s: float = ARRIVALS_S) -> Workload:
    """So many seconds of the load's requests arriving at a rate; of a trace no more than it has.

    Raises ConfigError for a load without times.
    """
    wanted = wanted_at(rate_per_s, for_s)
    if load.shape.arrival.kind == "sessions":
        wanted = _sessions_at(load, rate_per_s, for_s)
    enough = load.trace is not None and load.count <= wanted
    return (load if enough else load.first(wanted)).at_rate(rate_per_s)


def wanted_at(rate_per_s: float, for_s: float = ARRIVALS_S) -> int:
    """The requests of a replay at a rate; fewer will do for one that only begins."""
    fewest = FEWEST if for_s >= ARRIVALS_S else FEWEST // 3
    return min(MOST, max(fewest, round(for_s * rate_per_s)))


def _sessions_at(load: Workload, rate_per_s: float, for_s: float) -> int:
    """The sessions of a replay at a rate of them, with as many requests as any other replay has."""
    each = load.first(FEWEST_SESSIONS).count / FEWEST_SESSIONS
    return round(min(MOST / each, max(FEWEST_SESSIONS, FEWEST / each, for_s * rate_per_s)))


def warm_up_s(load: Workload) -> float:
    """The first of the arrivals, where requests or sessions arrive at random at a rate; 0 for clients and traces."""
    arrival = load.shape.arrival
    if arrival.kind == "sessions":
        return WARM_UP * arrival.sessions / arrival.rate if arrival.rate else 0.0
    return WARM_UP * arrival.requests / arrival.rate if arrival.kind == "poisson" else 0.0


def capacity_per_s(play: Play, load: Workload) -> float | None:
    """Requests (of sessions: sessions) a second that a full server gets through; None for a load too short to fill it.

    Everything arrives at once, four times the N that run together or more. The rate is that from the N-th end, until
    when all that run are young, to one some whole N later, before the server empties: requests of one length run in
    step, and end N at a time.
    """
    most = _most(load)
    wanted = min(FIRST_CROWD, most)
    while True:
        crowd = load.first(wanted).at_concurrency(wanted)
        seen = play(crowd)
        ends = np.sort([r.finished_s for r in seen.records if r.finished_s is not None])
        together = _together(seen)
        if together and len(ends) >= GENERATIONS * together:
            last = (len(ends) // together - 1) * together
            rate = seen.copies * (last - together) / float(ends[last] - ends[together])
            return rate * wanted / crowd.count
        if wanted == most:
            return None
        ran = int(seen.log.column("running").max(initial=0)) * seen.copies
        wanted = min(most, max(2 * wanted, GENERATIONS * ran))


def _most(load: Workload) -> int:
    """The largest crowd of a load, of sessions where it has those."""
    if load.trace is not None:
        return load.count
    some = load.first(FIRST_CROWD).summary()
    tokens = some.input_tokens_mean + some.output_tokens_mean
    return int(min(LARGEST_CROWD, LARGEST_CROWD_TOKENS / tokens) * FIRST_CROWD / some.requests) or 1


def _together(seen: Replay) -> int | None:
    """The most requests that run at once in the middle half of the time; None where seldom somebody waits then.

    They wait for the engine, or for the processes before it.
    """
    at_s = seen.log.column("end_s")
    inside = (at_s > 0.25 * at_s[-1]) & (at_s <= 0.75 * at_s[-1]) if len(at_s) else np.zeros(0, bool)
    if not inside.any():
        return None
    waits = float((seen.log.column("waiting")[inside] > 0).mean())
    full = waits > 0.9 or seen.frontend_busy > 0.9
    return int(seen.log.column("running")[inside].max()) if full else None


@dataclass(slots=True)
class Steady:
    """One server under a load's requests at any rate. `play` leaves the warm-up out; what was played is kept.

    known_capacity: `capacity_per_s`, where it need not be played.
    """

    play: Play
    load: Workload
    targets: Targets
    known_capacity: list[float | None] = field(default_factory=list)
    _seen: dict[tuple[float, float], Replay] = field(default_factory=dict)

    @property
    def capacity_per_s(self) -> float | None:
        """As the function says. Raises as `play`."""
        if not self.known_capacity:
            self.known_capacity.append(capacity_per_s(self.play, self.load))
        return self.known_capacity[0]

    @property
    def lasting_s(self) -> float:
        """How long requests arrive at every rate: as long as the load's own do, so that its own rate is the load itself."""
        arrival = self.load.shape.arrival
        return max(ARRIVALS_S, arrival.requests / arrival.rate if arrival.kind == "poisson" else 0.0)

    def at(self, rate_per_s: float, for_s: float | None = None) -> Replay:
        """The replay at a rate."""
        for_s = for_s or self.lasting_s
        if (rate_per_s, for_s) not in self._seen:
            self._seen[rate_per_s, for_s] = self.play(at_rate(self.load, rate_per_s, for_s))
        return self._seen[rate_per_s, for_s]

    def steps_at(self, rate_per_s: float) -> int:
        """Steps that were replayed at a rate."""
        return sum(len(seen.log.columns) for (rate, _), seen in self._seen.items() if rate == rate_per_s)

    def carries(self, rate_per_s: float) -> bool:
        """Whether nothing piles up at a rate: by the full server, or by the replay where the load does not fill it."""
        full = self.capacity_per_s
        return rate_per_s < full if full is not None else not self.at(rate_per_s).result.saturated

    def holds(self, rate_per_s: float) -> bool:
        """Whether nothing piles up and, with targets, so many requests are good."""
        if self.targets.any:
            played = (rate_per_s, self.lasting_s) in self._seen
            if not played and self.misses_early(rate_per_s):
                return False
            if not self.at(rate_per_s).result.keeps_targets:
                return False
        return self.carries(rate_per_s)

    def misses_early(self, rate_per_s: float) -> bool:
        """Whether more requests of the first seconds miss the targets than may of all."""
        opening, whole = (at_rate(self.load, rate_per_s, s).count for s in (OPENING_S, self.lasting_s))
        if 2 * opening > whole:
            return False
        result = self.at(rate_per_s, OPENING_S).result
        return (1 - result.good_share) * result.requests > (1 - self.targets.share) * (1 - WARM_UP) * whole

"""What arrives and what a full server gets through: whether the load is above capacity, whatever is replayed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import CamshaftError
from .rig import Rig
from .situation import Situation

FAR_ABOVE = 3.0  # times what a full server gets through
ABOVE = 1.05  # times the rate that was seen to be done: more than that piles up


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests a second: what arrives (None: clients that wait for their answers) and what a full server does.

    told: the server was seen to do so many; otherwise a replay says it.
    """

    rig: Rig
    rate_per_s: float | None
    done_per_s: float | None
    told: bool
    overloaded: bool

    @property
    def far_above(self) -> bool:
        """Whether so much more arrives that replays of it are of a full server themselves, and no turn carries it."""
        return bool(self.rate_per_s and self.done_per_s and self.rate_per_s > FAR_ABOVE * self.done_per_s)

    def times(self, turned: Mapping[str, Any]) -> float | None:
        """How many times the rate a full server gets through with knobs turned; None where that is not known."""
        before, after = (_full(self.rig, changes) for changes in ({}, turned))
        return after / before if before and after else None

    def carried(self, turned: Mapping[str, Any]) -> bool | None:
        """Whether a server with knobs turned gets through what arrives; None where that is not known."""
        if self.rate_per_s is None:
            return None
        if self.told and self.done_per_s is not None:
            times = self.times(turned)
            return None if times is None else self.rate_per_s < ABOVE * self.done_per_s * times
        return self.rig.steady(turned).carries(self.rate_per_s)

    def short_of(self, turned: Mapping[str, Any]) -> str:
        """That more arrives even so; empty where it is carried or not known."""
        times = self.times(turned)
        if self.carried(turned) is not False or times is None or not self.done_per_s:
            return ""
        return (
            f"Even so {self.rate_per_s:.3g} requests a second arrive and a full server gets through "
            f"{self.done_per_s * times:.3g}"
        )

    def full(self, turned: Mapping[str, Any]) -> float | None:
        """Requests (or sessions) a second that a full server gets through with knobs turned, by a replay."""
        return _full(self.rig, turned)

    def turns_at(self, percent: float) -> str:
        """What becomes of it where all steps are faster or slower; empty where that changes nothing."""
        rate, done = self.rate_per_s, self.done_per_s
        if self.told or rate is None or done is None:
            return ""
        name, full = (
            ("faster", done / (1 - percent / 100)) if rate >= done else ("slower", done / (1 + percent / 100))
        )
        if (rate >= done) == (rate >= full):
            return ""
        does = "which is enough" if rate < full else "and requests pile up"
        return f"with all steps {percent:g} % {name} a full server gets through {full:.3g} requests/s, {does}"


def demand(situation: Situation, rig: Rig) -> Demand:
    """As the evidence has it, where it counts what is done; by a replay of a full server otherwise."""
    rate = _rate(situation, rig)
    growth = situation.figure("queue_growth_per_s")
    done = situation.figure("completed_per_s")
    if done is None and growth and rate:
        done = max(rate - growth, 1e-9)
    if rate and done:
        sure = situation.evidence.hint("request_rate_per_s") or not situation.kv_full
        return Demand(rig, rate, done, True, bool(sure) and rate > ABOVE * done)
    rises = situation.evidence.trend("waiting") == "rising" and not situation.kv_full
    full = _full(rig, {}) if rate or rises else None
    return Demand(rig, rate, full, False, rises or (rate is not None and not rig.steady({}).carries(rate)))


def _rate(situation: Situation, rig: Rig) -> float | None:
    """The rate of what is replayed; None for a closed loop."""
    if rig.workload.concurrency or situation.evidence.hint("concurrency"):
        return None
    told = getattr(rig.workload.shape.arrival, "rate", None)
    return situation.rate_per_s or told


def _full(rig: Rig, turned: Mapping[str, Any]) -> float | None:
    try:
        return rig.steady(turned).capacity_per_s
    except CamshaftError:
        return None

"""How many servers a rate needs: replays of equal shares of it, as it is and with a knob turned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import CamshaftError
from ..results import Result
from ..simulate import Replay
from .model import Proof, Proposal
from .prove import WORTH
from .rig import Rig

MOST = 4096  # servers
PRECISION = 0.1  # of a number of servers that is large
CANDIDATES = 4  # turns that are tried on the share that misses the targets


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that share a rate evenly, each as diagnosed. None: more than MOST, so no share of it holds."""

    rate_per_s: float
    keep_up: int | None  # no queue builds up
    keep_targets: int | None = None  # and 95 % of the requests keep the targets; None without targets, too
    targets: str = ""
    turned: Proposal | None = None  # the turn that saves most, and what is needed with it
    turned_servers: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        turned = self.turned
        return {
            "request_rate_per_s": self.rate_per_s,
            "keep_up": self.keep_up,
            "keep_targets": self.keep_targets,
            "turned": None if turned is None else {**turned.turned, "servers": self.turned_servers},
        }

    def sentence(self) -> str:
        """`6 such servers (10/s each) keep up; 120 (0.5/s each) keep the SLO, 24 (2.5/s each) with max_num_seqs 8, by...`."""
        if self.keep_up is None:
            text = "no number of such servers would keep up"
        elif self.keep_up == 1:
            text = "1 such server keeps up"
        else:
            text = f"{self._shared(self.keep_up, ' such servers')} keep up"
        if self.targets:
            kept = (
                f"{self._shared(self.keep_targets)} keep" if self.keep_targets else "no number of them keeps"
            )
            text += f"; {kept} the SLO"
        if self.turned is not None and self.turned_servers is not None:
            text += f", {self._shared(self.turned_servers)} with {self.turned.knob} {self.turned.after}"
        return f"{text}, by replays of equal shares of the load"

    def _shared(self, servers: int, noun: str = "") -> str:
        """A number of servers and the part of the rate that each has; one has it all."""
        each = f" ({self.rate_per_s / servers:.3g}/s each)" if servers > 1 else ""
        return f"{servers:,}{noun}{each}"


def servers_for(rig: Rig, rate_per_s: float, proofs: Sequence[Proof], at_least: int = 1) -> Servers | None:
    """The servers that carry a rate, and the turn, of those proved, that needs fewest of them.

    at_least: fewer are known not to keep up. None where the load cannot be replayed at another rate.
    """
    shares = _Shares(rig, rate_per_s)
    try:
        return _searched(shares, proofs, at_least)
    except CamshaftError:
        return None


@dataclass(slots=True)
class _Shares:
    """Replays of a share of the load, each played once."""

    rig: Rig
    rate_per_s: float
    _played: dict[str, Replay] = field(default_factory=dict)

    def play(self, servers: int, turned: Mapping[str, Any]) -> Replay:
        key = f"{servers} {sorted(turned.items())!r}"
        if key not in self._played:
            self._played[key] = self.rig.at_rate(self.rate_per_s / servers).play(turned)
        return self._played[key]


def _searched(shares: _Shares, proofs: Sequence[Proof], at_least: int) -> Servers:
    def keeps_up(turned: Mapping[str, Any]) -> Callable[[int], bool]:
        return lambda servers: settles(shares.play(servers, turned))

    def keeps(turned: Mapping[str, Any]) -> Callable[[int], bool]:
        def holds(servers: int) -> bool:
            replayed = shares.play(servers, turned)
            return settles(replayed) and replayed.result.keeps_targets

        return holds

    targets = proofs[0].before.targets if proofs else shares.play(at_least, {}).result.targets
    enough = fewest(keeps_up({}), at_least)
    kept = fewest(keeps({}), max(2, enough or at_least)) if targets.any else None
    needed = kept if targets.any else enough
    best = _best_turn(shares, proofs, _too_few(at_least, needed))
    turned = None
    if best is not None:
        turned = fewest((keeps if targets.any else keeps_up)(best.turned), 1, known=needed)
    if turned is None or (needed is not None and turned >= needed):
        best = turned = None
    return Servers(shares.rate_per_s, enough, kept, targets.describe(), best, turned)


def _too_few(least: int, needed: int | None) -> int:
    """Servers at which turns differ: between those that are too few with any of them and those that are enough."""
    return max(1, math.isqrt(least * (needed or 64 * least)))


def _best_turn(shares: _Shares, proofs: Sequence[Proof], servers: int) -> Proposal | None:
    """The turn under which most requests of a share that is too large are good (or done, without targets)."""
    tried = [(_done(shares.play(servers, {}).result) * (1 + WORTH), None)]
    for proof in [proof for proof in proofs if not proof.proposal.lossy][:CANDIDATES]:
        try:
            tried.append((_done(shares.play(servers, proof.proposal.turned).result), proof.proposal))
        except CamshaftError:
            continue
    return max(tried, key=lambda row: row[0])[1]


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


def _done(result: Result) -> float:
    return result.goodput_requests_per_s if result.targets.any else result.throughput_requests_per_s


def fewest(holds: Callable[[int], bool], at_least: int, known: int | None = None) -> int | None:
    """The fewest servers from `at_least` on that hold, a large number to within PRECISION; None above MOST.

    known: a number that holds.
    """
    if at_least > MOST:
        return None
    low, high = at_least - 1, known or at_least
    while known is None and not holds(high):
        if high == MOST:
            return None
        low, high = high, min(2 * high, MOST)
    while high - low > max(1, math.floor(PRECISION * high)):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high

"""How many servers a rate needs: replays of equal shares of it, as it is and with a knob turned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import CamshaftError
from ..simulate import Replay
from ..simulate.steady import OPENING_S
from .model import Proof, Proposal
from .prove import WORTH
from .rig import Rig

MOST = 4096  # servers
PRECISION, ROUGHLY = 0.1, 0.25  # of a number of servers that is large, and of one that is MANY
MANY = 50  # so few requests a second reach each that replays tell the share of good ones no better
CANDIDATES = 4  # proved turns that are tried on each share
MOST_TRIES = 24  # replays of turned shares before only what held is tried
MOST_STEPS = 80_000  # of them all: some three seconds
SOME = 64  # servers: up to so many are tried whatever keeps up
FAR = 8  # times the servers that keep up, or keep the targets with a turn: nobody buys more to keep them without one
SEVERAL = 3  # times as many as keep up need a word why
NEAR = 0.5  # of the requests good: fewer are not worth a word


Propose = Callable[[Replay], Sequence[Proposal]]


@dataclass(frozen=True, slots=True)
class Near:
    """A turn with which a server fewer nearly keeps the targets."""

    servers: int
    turned: Proposal
    good_share: float
    error_percent: float  # by which faster steps would do; 0: the declared error does not

    def sentence(self) -> str:
        """`2 with max_num_batched_tokens 1024 keep it for 76% of the requests`."""
        verb = "keep" if self.servers > 1 else "keeps"
        text = f"{self.servers:,} with {self.turned.set_text} {verb} it for {self.good_share:.0%} of the requests"
        if self.error_percent:
            text += f" and would do were all steps {self.error_percent:g} % faster, which is within the error"
        return text


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that share a rate evenly, each as diagnosed. None: more than MOST, so no share of it holds."""

    rate_per_s: float
    keep_up: int | None  # no queue builds up
    keep_targets: int | None = None  # and enough of the requests keep the targets; None without targets, too
    more_than: int | None = None  # so many do not, and more were not tried
    targets: str = ""
    turned: Proposal | None = None  # the turn that saves most, and what is needed with it
    turned_servers: int | None = None
    near: Near | None = None  # with one server fewer than that
    because: str = ""  # why far more keep the targets than keep up
    lossy: Proposal | None = None  # a turn that saves more and may change answers, and what is needed with it
    lossy_servers: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        turned, lossy = self.turned, self.lossy
        return {
            "request_rate_per_s": self.rate_per_s,
            "keep_up": self.keep_up,
            "keep_targets": self.keep_targets,
            "keep_targets_more_than": self.more_than,
            "turned": None if turned is None else {**turned.turned, "servers": self.turned_servers},
            "lossy": None if lossy is None else {**lossy.turned, "servers": self.lossy_servers},
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
            text += f"; {self._kept()} the SLO"
        if self.turned is not None and self.turned_servers is not None:
            text += f", {self._shared(self.turned_servers)} with {self.turned.set_text}"
        if self.lossy is not None and self.lossy_servers is not None:
            text += f", {self._shared(self.lossy_servers)} with {self.lossy.set_text} (answers may change)"
        text += ", by replays of equal shares of the load"
        text = text if self.near is None else f"{text}; {self.near.sentence()}"
        return f"{text}. {self.because}" if self.because else text

    @property
    def far_more(self) -> bool:
        """Whether the targets ask for several times the servers that keep up."""
        needed = self.turned_servers or self.keep_targets or self.more_than or 0
        return bool(self.keep_up and needed >= SEVERAL * self.keep_up)

    def _kept(self) -> str:
        if self.keep_targets:
            return f"{self._shared(self.keep_targets)} keep"
        return f"not even {self.more_than:,} keep" if self.more_than else "no number of them keeps"

    def _shared(self, servers: int, noun: str = "") -> str:
        """A number of servers and the part of the rate that each has; one has it all."""
        each = f" ({self.rate_per_s / servers:.3g}/s each)" if servers > 1 else ""
        return f"{servers:,}{noun}{each}"


def servers_for(
    rig: Rig,
    rate_per_s: float,
    proofs: Sequence[Proof],
    at_least: int = 1,
    propose: Propose | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Servers | None:
    """The servers that carry a rate, and the turn that needs fewest of them.

    at_least: fewer are known not to keep up. Turns are those proved and those that `propose` has for the replay of a
    share: what helps a server depends on how much of the rate it has. None where the load cannot be replayed at another
    rate.
    """
    if not rig.steady({}).targets.any:  # then a full server's rate decides, whatever the share
        proofs = [proof for proof in proofs if proof.times_done > 1 + WORTH]
        propose = None
    try:
        found = _searched(_Turns(rig, rate_per_s, propose, _lossless(proofs), tell), at_least)
        return _with_lossy(found, rig, [proof.proposal for proof in proofs if proof.proposal.lossy])
    except CamshaftError:
        return None


def _lossless(proofs: Sequence[Proof]) -> list[Proposal]:
    return [proof.proposal for proof in proofs if not proof.proposal.lossy][:CANDIDATES]


@dataclass(slots=True)
class _Turns:
    """The turns that are tried on a share: what held on another one, what its own replay suggests, what was proved."""

    rig: Rig
    rate_per_s: float
    propose: Propose | None
    proved: Sequence[Proposal]
    tell: Callable[[str], None]
    tries: int = 0
    steps: int = 0
    held: list[Proposal] = field(default_factory=list)  # the last first
    _found: dict[int, Proposal | None] = field(default_factory=dict)

    def holding(self, servers: int) -> Proposal | None:
        """The first turn with which so many servers are enough."""
        if servers not in self._found:
            self._found[servers] = next(
                (p for p in self.candidates(servers) if self._holds(servers, p)), None
            )
            if (found := self._found[servers]) is not None:
                self.held.insert(0, found)
        return self._found[servers]

    @property
    def spent(self) -> bool:
        """Whether so much was replayed that only what held before is tried."""
        return self.tries >= MOST_TRIES or self.steps >= MOST_STEPS

    def candidates(self, servers: int) -> list[Proposal]:
        """Each once."""
        if self.spent:
            return self.held[:1]
        suggested: list[Proposal] = []
        if self.propose is not None:
            seen = self.rig.steady({}).at(self.rate_per_s / servers, OPENING_S)
            suggested = [proposal for proposal in self.propose(seen) if not proposal.lossy]
        listed = (*self.held, *suggested, *self.proved)
        return list({repr(sorted(p.turned.items())): p for p in listed}.values())

    def _holds(self, servers: int, proposal: Proposal) -> bool:
        self.tries += 1
        rate = self.rate_per_s / servers
        try:
            turned = self.rig.steady(proposal.turned)
            holds = turned.holds(rate)
            self.steps += turned.steps_at(rate)
        except CamshaftError:
            return False
        return holds


def _searched(turns: _Turns, at_least: int) -> Servers:
    rate, server = turns.rate_per_s, turns.rig.steady({})
    enough = fewest(lambda n: server.carries(rate / n), at_least)
    if not server.targets.any:
        return _with_turn(turns, Servers(rate, enough), 0, enough)
    targets = server.targets.describe()

    def as_it_is(servers: int) -> bool:
        return servers > 1 and server.holds(rate / servers)

    if enough is None:
        return Servers(rate, None, targets=targets)
    first = 2 * enough  # at what just keeps up every queue is long
    most = min(MOST, max(SOME, FAR * enough))

    def either(servers: int) -> bool:
        turns.tell(f"trying {servers:,} servers with {rate / servers:.3g}/s each")
        return as_it_is(servers) or turns.holding(servers) is not None

    found = doubled(either, first, most)
    if found is None:
        return Servers(rate, enough, None, most, targets)
    high = found[1]
    low = found[0] if high > first else 0  # a turn may need fewer than keep up as it is
    if as_it_is(high):
        kept = halved(as_it_is, max(low, enough - 1), high)
        return _with_turn(turns, Servers(rate, enough, kept, targets=targets), low, kept)
    turned = _with_turn(turns, Servers(rate, enough, targets=targets), low, high)
    most = min(MOST, FAR * (turned.turned_servers or high))
    kept = fewest(as_it_is, high + 1, most)
    return replace(turned, keep_targets=kept, more_than=None if kept else most)


def _with_turn(turns: _Turns, found: Servers, low: int, known: int | None) -> Servers:
    """The servers with the turn that needs fewest, where that is fewer than without one.

    low: so few are too few whatever is turned. known: so many are enough.
    """
    needed = found.keep_targets if found.targets else found.keep_up
    if known is None:
        turned = fewest(lambda n: turns.holding(n) is not None, 1)
    else:
        turned = halved(lambda n: turns.holding(n) is not None, low, known)
    if turned is None or (needed is not None and turned >= needed):
        return found
    near = _near(turns, turned - 1) if PRECISION * turned <= 1 else None  # a number that is known exactly
    return replace(found, turned=turns.holding(turned), turned_servers=turned, near=near)


def _with_lossy(found: Servers, rig: Rig, lossy: Sequence[Proposal]) -> Servers:
    """The servers with the first turn that may change answers, where fewer are enough with it."""
    best = found.turned_servers or (found.keep_targets if found.targets else found.keep_up)
    if not lossy or best == 1:
        return found
    server = rig.steady(lossy[0].turned)

    def holds(servers: int) -> bool:
        return server.holds(found.rate_per_s / servers)

    if best is None:
        needed = fewest(holds, 1, found.more_than or MOST)
    else:
        fewer = best - max(1, math.floor(PRECISION * best))
        needed = halved(holds, 0, fewer) if holds(fewer) else None
    return found if needed is None else replace(found, lossy=lossy[0], lossy_servers=needed)


def _near(turns: _Turns, servers: int) -> Near | None:
    """What comes nearest with one server fewer, where half the requests or more are good with it."""
    rig = turns.rig
    if not servers or not rig.steady({}).targets.any or turns.spent:
        return None
    rate, best = turns.rate_per_s / servers, None
    for proposal in turns.candidates(servers):
        try:
            server = rig.steady(proposal.turned)
            if server.misses_early(rate):
                continue
            share = server.at(rate).result.good_share
        except CamshaftError:
            continue
        best = (share, proposal) if best is None or share > best[0] else best
    if best is None or best[0] < NEAR:
        return None
    percent = rig.band_percent
    faster = rig.steady(best[1].turned, 1 - percent / 100)
    return Near(servers, best[1], best[0], percent if faster.holds(rate) else 0.0)


def fewest(holds: Callable[[int], bool], at_least: int, most: int = MOST) -> int | None:
    """The fewest servers from `at_least` on that hold, a large number roughly; None above `most`."""
    found = doubled(holds, at_least, most)
    return None if found is None else halved(holds, *found)


def doubled(holds: Callable[[int], bool], first: int, most: int = MOST) -> tuple[int, int] | None:
    """A number that is too small and one that holds, of `first` and twice as many again and again; None above `most`."""
    low, high = first - 1, first
    while high <= most:
        if holds(high):
            return low, high
        low, high = high, max(high + 1, min(2 * high, most))
    return None


def halved(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The fewest that hold above `low`, which is too small, up to `high`, which holds; large ones roughly."""
    while high - low > max(1, math.floor((PRECISION if high < MANY else ROUGHLY) * high)):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high

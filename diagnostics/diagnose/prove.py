"""Two replays for each proposal, as it is and with the knob turned, and what the difference is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...core.errors import CamshaftError
from ..results import Distribution, Result
from .figures import SHARES, falls, figures, moved_text, usual
from .model import Change, Proof, Proposal
from .rig import Rig
from .situation import Situation, preemption_marks

WORTH = 0.03  # gains below this (about 3 %) are nothing to act on
REMEDY = 0.15  # gains below this are no remedy where nobody complains
MOST_FIGURES = 2  # of what a second knob adds
MOST_SECONDS = 6.0  # of processor time
MOST = 3.0  # natural log: beyond a factor 20 one figure says no more
LATE_TTFT_MS = 2000.0  # half the requests wait longer for a first token: that is what is wrong
FEW_GOOD = 0.1  # of the requests: fewer tell less of a turn than what it does to the others
NEAR_MISS = 0.05  # of all requests are counted good beforehand: a ratio of two handfuls says little


@dataclass(frozen=True, slots=True)
class Objective:
    """What each log ratio of a latency counts beside throughput: what somebody suffers from counts more.

    A request's whole time, not its time per token, stands for decoding: where fewer run at once each of them
    is faster, and the others wait for it.
    """

    first_token: float = 0.1  # p50 and p99, each
    gaps: float = 0.05  # between tokens
    whole: float = 0.3  # a request from end to end, mean
    per_token: float = 0.0  # mean time per output token: of use only where evictions stretch it
    # The longest gap: chunking makes stalls shorter and more frequent, which can raise the 99th percentile.
    widest_gap: bool = False

    @classmethod
    def of(cls, situation: Situation, seen: Result | None = None) -> Objective:
        """By what the evidence shows: first tokens behind somebody's prompt, or gaps between tokens.

        Where there is none, by the replay as it is: first tokens that come late count more.
        """
        if situation.stalled_ttft is not None:
            return cls(first_token=0.5, gaps=0.05, whole=0.05)
        if situation.spiky_gaps is not None:
            return cls(first_token=0.05, gaps=1.0, whole=0.1, widest_gap=True)
        if preemption_marks(situation):  # first tokens come early there, and are paid for with lost work
            return cls(per_token=0.3)
        if situation.late_first_token:
            return cls(first_token=0.2)
        late = seen is not None and seen.ttft_ms is not None and seen.ttft_ms.p50 > LATE_TTFT_MS
        if late and situation.evidence.thin and not situation.targets.any:
            return cls(first_token=0.3)
        return cls()


def prove(rig: Rig, proposals: Iterable[Proposal], objective: Objective | None = None) -> list[Proof]:
    """The proposals that can be replayed, each with both results; what cannot run turned is dropped.

    Mere turns are given up after a while, once a replay has confirmed what the evidence shows.
    """
    before = rig.play({}).result
    aim = objective or Objective()
    proofs: list[Proof] = []
    started = time.process_time()
    for proposal in proposals:
        late = time.process_time() - started > MOST_SECONDS and not proposal.from_evidence
        if late and any(proof.gain > WORTH and proof.proposal.from_evidence for proof in proofs):
            break
        try:
            replayed = rig.play(proposal.turned)
        except CamshaftError:
            continue
        after = replayed.result
        proofs.append(
            Proof(
                proposal=proposal,
                before=before,
                after=after,
                gain=gain(before, after, aim),
                predicted=predicted(before, after, rig.band_percent, aim),
                telling=telling(before, after, aim),
                replay=replayed,
            )
        )
    return proofs


def gain(before: Result, after: Result, objective: Objective) -> float:
    """How much better: the log ratio of throughput (goodput under targets) plus the latencies' by their weights."""
    return sum(_parts(before, after, objective).values())


def _parts(before: Result, after: Result, objective: Objective) -> dict[str, float]:
    """What each figure counts in the gain."""
    rate = _ratio(before.throughput_output_tokens_per_s, after.throughput_output_tokens_per_s)
    served = _ratio(*(result.completed / max(1, result.requests) for result in (before, after)))
    parts = {"served_share": served}
    if (
        abs(served) > WORTH
    ):  # what is refused is of another length: the others' latencies compare with nothing
        return parts
    if before.targets.any:
        few = NEAR_MISS * before.throughput_requests_per_s
        if beyond_chance(before, after):
            good = _ratio(before.goodput_requests_per_s + few, after.goodput_requests_per_s + few)
            parts["goodput_requests_per_s"] = good
            rate *= 0.1
        else:  # the same share is good: goodput goes as the throughput
            rate *= 1.1
    widest = "max" if objective.widest_gap else "p99"
    parts["output_tokens_per_s"] = rate
    for name in ("p50", "p99"):
        parts[f"ttft_{name}_ms"] = objective.first_token * _latency(before.ttft_ms, after.ttft_ms, name)
    parts[f"itl_{widest}_ms"] = objective.gaps * _latency(before.itl_ms, after.itl_ms, widest)
    parts["tpot_mean_ms"] = objective.per_token * _latency(before.tpot_ms, after.tpot_ms, "mean")
    parts["e2e_mean_ms"] = objective.whole * _latency(before.e2e_ms, after.e2e_ms, "mean")
    return parts


def telling(before: Result, after: Result, objective: Objective) -> str:
    """The figure that counts most in the gain, or in the loss where it is one."""
    parts = _parts(before, after, objective)
    sign = 1 if sum(parts.values()) >= 0 else -1
    if parts["served_share"] * sign > WORTH:
        return "served_share"
    known = max(before.good_share, after.good_share) > FEW_GOOD
    if known and parts.get("goodput_requests_per_s", 0.0) * sign > WORTH:
        return "goodput_requests_per_s"
    others = [name for name in parts if name != "goodput_requests_per_s" or known]
    return max(others, key=lambda name: sign * parts[name])


def beyond_chance(before: Result, after: Result) -> bool:
    """Whether the share of good requests differs by more than two standard errors of so many requests (binomial)."""
    shares = (before.good_share, after.good_share)
    counts = (max(1, before.requests), max(1, after.requests))
    error = math.sqrt(sum(p * (1 - p) / n for p, n in zip(shares, counts, strict=True)))
    return abs(shares[1] - shares[0]) > max(2 * error, 2 / min(counts))


def _ratio(before: float, after: float) -> float:
    return _clip(math.log(max(after, 1e-6) / max(before, 1e-6)))


def _latency(before: Distribution | None, after: Distribution | None, name: str) -> float:
    """Above 0 when the latency falls. Below a millisecond nothing matters."""
    if before is None or after is None:
        return 0.0
    return _clip(math.log(max(getattr(before, name), 1.0) / max(getattr(after, name), 1.0)))


def _clip(value: float) -> float:
    return min(MOST, max(-MOST, value))


def predicted(
    before: Result, after: Result, band_percent: float, aim: Objective | None = None
) -> Mapping[str, Change]:
    """The figures that change, each with the range: the change itself is good to `band_percent`."""
    widest = aim is not None and aim.widest_gap
    one, other = figures(before, widest), figures(after, widest)
    return {
        name: _change(name, value, other[name], band_percent)
        for name, value in one.items()
        if name in other and not usual(name, value, other[name])
    }


def _change(name: str, before: float, after: float, band_percent: float) -> Change:
    spread = abs(after) * band_percent / 100
    most = 1.0 if name in SHARES else math.inf
    return Change(before=before, after=after, low=max(0.0, after - spread), high=min(most, after + spread))


def best_pair(rig: Rig, proofs: list[Proof], objective: Objective) -> Proof | None:
    """The two best turns of different knobs together, where that beats the best one by more than a little."""
    useful = [proof for proof in proofs if proof.gain > WORTH and not proof.proposal.lossy]
    first = useful[0] if useful else None
    second = next((p for p in useful[1:] if first and p.proposal.knob != first.proposal.knob), None)
    if first is None or second is None:
        return None
    both = replace(
        first.proposal,
        knob=f"{first.proposal.knob} and {second.proposal.knob}",
        before=f"{first.proposal.before}, {second.proposal.before}",
        after=f"{first.proposal.after}, {second.proposal.after}",
        changes={**second.proposal.turned, **first.proposal.turned},
        was={**second.proposal.was, **first.proposal.was},
        why="both together",
    )
    found = prove(rig, [both], objective)
    return found[0] if found and found[0].gain > first.gain + WORTH else None


def together(pair: Proof) -> str:
    """What two knobs gain that are turned together: `Two together gain: max_num_seqs 64 and ...: output 54 -> 93 tokens/s`."""
    name = pair.telling or "output_tokens_per_s"
    change = pair.predicted[name]
    return f"Two together gain, {pair.proposal.set_text}: {moved_text(name, change.before, change.after)}"


def then_also(chosen: Proof, pair: Proof) -> str:
    """What a second knob adds to the one that is chosen; empty where any figure loses by it.

    `With max_num_batched_tokens 512 too, replayed together: output 544 -> 593 tokens/s`.
    """
    told, both = chosen.proposal.turned, pair.proposal.turned
    more = {name: value for name, value in both.items() if name not in told}
    if not more or any(both.get(name) != value for name, value in told.items()):
        return ""
    one, two = figures(chosen.after), figures(pair.after)
    shown = []
    for name in (name for name in one if name in two):
        better = one[name] - two[name] if falls(name) else two[name] - one[name]
        if better < -0.02 * abs(one[name]):
            return ""
        if better > 0.02 * abs(one[name]):
            shown.append((better / abs(one[name]), moved_text(name, one[name], two[name])))
    best = sorted(shown, reverse=True)[:MOST_FIGURES]
    knobs = " and ".join(f"{name} {value}" for name, value in more.items())
    return f"With {knobs} too, replayed together: {', '.join(text for _, text in best)}" if best else ""

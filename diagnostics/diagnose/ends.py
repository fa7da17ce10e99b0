"""Whether a verdict holds within the declared error: both replays again, with all steps faster and all slower by it.

Two replays of one cost model share its error, so a common factor on every step is what they may be off by. The same
goes for step times fitted from the evidence, whose band is wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...core.errors import CamshaftError
from ..results import Result
from ..simulate import Replay
from .figures import amount, falls, figures, label_text, usual
from .model import Change, Proof, Verdict
from .prove import REMEDY, WORTH, Objective, gain, predicted
from .rig import Rig


@dataclass(frozen=True, slots=True)
class Ends:
    """Results at the two ends of the error: as it is, and turned where something is."""

    percent: float
    before: tuple[Result, Result]  # steps faster, steps slower
    after: tuple[Result, Result] | None = None


def play_ends(rig: Rig, turned: Mapping[str, Any] | None) -> Ends | None:
    """The replays at both ends; None where one of them cannot run or the sheet states no error."""
    percent = rig.band_percent
    if percent <= 0:
        return None
    try:
        before = _at_both(rig, {}, percent)
        after = _at_both(rig, turned, percent) if turned else None
    except CamshaftError:
        return None
    return Ends(percent, before, after)


def _at_both(rig: Rig, turned: Mapping[str, Any], percent: float) -> tuple[Result, Result]:
    share = percent / 100
    return rig.play(turned, 1 - share).result, rig.play(turned, 1 + share).result


def at_the_ends(
    verdict: Verdict, proof: Proof, ends: Ends, aim: Objective, rig: Rig | None = None
) -> Verdict:
    """The verdict with ranges from the ends, whether the gain is one at both of them, and where it ends if not.

    rig: what the proof was replayed on, to find where; without one that is not said.
    """
    assert ends.after is not None  # the caller turned something
    ranged = _ranged(proof, ends, aim)
    pairs = list(zip(ends.before, ends.after, strict=True))
    lost = [place for place, (before, after) in enumerate(pairs) if not _gains(proof, before, after, aim)]
    if not lost:
        told = f"it gains at both ends of the error too, all steps {ends.percent:g} % faster or slower"
        return replace(verdict, predicted=ranged, at_the_ends=f"{told}{_missed(proof, ends)}")
    parts = [_lost(proof, ends.percent, place, pairs[place], aim, rig) for place in lost]
    told = f"this is within the error of the prediction: {'; '.join(parts)}"
    return replace(verdict, predicted=ranged, at_the_ends=f"{told}{_missed(proof, ends)}", within_error=True)


def _missed(proof: Proof, ends: Ends) -> str:
    """That targets which the turned replay keeps are missed at an end of the error; empty where they are not."""
    if ends.after is None or not proof.after.targets.any or not proof.after.keeps_targets:
        return ""
    parts = [
        f"with all steps {ends.percent:g} % {name} the SLO is missed ({after.good_share:.1%} of the requests keep it)"
        for name, after in zip(_ENDS, ends.after, strict=True)
        if not after.keeps_targets
    ]
    return "".join(f"; {part}" for part in parts)


def _gains(proof: Proof, before: Result, after: Result, aim: Objective) -> bool:
    """Whether the turn gains at an end of the error, in all and in the figure that tells most of it."""
    told = _telling(proof, before, after, aim)
    gained = _telling(proof, proof.before, proof.after, aim)
    if gained is not None and _change(*gained) > WORTH and told is not None and _change(*told) <= WORTH:
        return False
    return gain(before, after, aim) > WORTH


def _telling(proof: Proof, before: Result, after: Result, aim: Objective) -> tuple[str, float, float] | None:
    name = proof.telling
    change = predicted(before, after, 0.0, aim).get(name) if name else None
    return None if name is None or change is None else (name, change.before, change.after)


def _change(name: str, before: float, after: float) -> float:
    """How much better a figure is, as a natural logarithm."""
    ratio = math.log(max(after, 1e-6) / max(before, 1e-6))
    return -ratio if falls(name) else ratio


_ENDS = ("faster", "slower")
TRIED = 3  # replays of each configuration, to find where a gain ends: to an eighth of the error


def _lost(
    proof: Proof, percent: float, place: int, pair: tuple[Result, Result], aim: Objective, rig: Rig | None
) -> str:
    """What is left of the gain at one end of the error, and from where on."""
    text = f"with all steps {percent:g} % {_ENDS[place]} the turn gains nothing"
    if (told := _telling(proof, *pair, aim)) is not None:
        name, before, after = told
        text += f" in {label_text(name)[0]} ({amount(name, before)} -> {amount(name, after)})"
    if rig is None:
        return text
    sign = 1 if _ENDS[place] == "slower" else -1
    holds, ends = 0.0, percent
    for _ in range(TRIED):
        middle = (holds + ends) / 2
        factor = 1 + sign * middle / 100
        before, after = (rig.play(turned, factor).result for turned in ({}, proof.proposal.turned))
        holds, ends = (middle, ends) if _gains(proof, before, after, aim) else (holds, middle)
    return f"{text}; the gain ends at about {ends:.2g} % {_ENDS[place]}"


def none_at_the_ends(verdict: Verdict, proof: Proof, ends: Ends, aim: Objective) -> Verdict:
    """A verdict that no knob is wrong, and whether the best turn would be a remedy at one end of the error."""
    assert ends.after is not None  # the caller turned something
    told = proof.proposal
    for name, before, after in zip(("faster", "slower"), ends.before, ends.after, strict=True):
        if gain(before, after, aim) <= REMEDY or before.keeps_targets:
            continue
        sentence = (
            f"this is within the error of the prediction: with all steps {ends.percent:g} % {name}, {told.text} "
            f"would take goodput from {before.goodput_requests_per_s:.3g} to "
            f"{after.goodput_requests_per_s:.3g} requests/s"
        )
        return replace(verdict, at_the_ends=sentence, within_error=True)
    return verdict


def _ranged(proof: Proof, ends: Ends, aim: Objective) -> dict[str, Change]:
    """Each predicted figure with what it spans between the ends, before and after."""
    assert ends.after is not None
    rows = [predicted(b, a, 0.0, aim) for b, a in zip(ends.before, ends.after, strict=True)]
    found = {}
    for name, change in proof.predicted.items():
        seen = [row[name] for row in rows if name in row]
        befores = [change.before, *(row.before for row in seen)]
        afters = [change.after, *(row.after for row in seen)]
        found[name] = replace(
            change, low=min(afters), high=max(afters), before_range=(min(befores), max(befores))
        )
    return found


def as_it_is(seen: Replay, ends: Ends | None, aim: Objective) -> dict[str, Change]:
    """The figures of the replay as it is, with what each spans between the ends."""
    found = {}
    spans = [figures(end, aim.widest_gap) for end in ends.before] if ends is not None else []
    for name, value in figures(seen.result, aim.widest_gap).items():
        if usual(name, value):
            continue
        ranged = [value, *(span[name] for span in spans if name in span)]
        span = (min(ranged), max(ranged)) if spans else None
        found[name] = Change(before=value, after=value, low=value, high=value, before_range=span)
    return found


def kept(seen: Replay, ends: Ends | None) -> dict[str, Any]:
    """Whether the load as it is keeps the targets, the share of requests that does, and both at the ends."""
    result = seen.result
    told: dict[str, Any] = {
        "targets": result.targets.describe(),
        "rule": result.targets.rule(),
        "met": result.keeps_targets,
        "good_share": round(result.good_share, 4),
        "goodput_requests_per_s": round(result.goodput_requests_per_s, 4),
    }
    if seen.from_start is not None:
        told["good_share_with_start"] = round(seen.from_start.good_share, 4)
    if ends is not None:
        shares = [round(end.good_share, 4) for end in (result, *ends.before)]
        told["good_share_range"] = [min(shares), max(shares)]
        told["error_percent"] = ends.percent
        told["within_error"] = any(end.keeps_targets != result.keeps_targets for end in ends.before)
    return told

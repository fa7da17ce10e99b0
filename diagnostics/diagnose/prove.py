"""Two replays for each proposal, as it is and with the knob turned, and what the difference is worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...core.errors import CamshaftError
from ..results import Distribution, Result
from .model import Change, Proof, Proposal
from .rig import Rig

WORTH = 0.03  # gains below this (about 3 %) are nothing to act on
LATENCY_WEIGHT = 0.25
MOST = 2.0  # natural log: beyond a factor 7 one figure says no more


def prove(rig: Rig, proposals: Iterable[Proposal]) -> list[Proof]:
    """The proposals that can be replayed, each with both results; what cannot run turned is dropped."""
    before = rig.play({}).result
    proofs = []
    for proposal in proposals:
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
                gain=gain(before, after),
                predicted=predicted(before, after, rig.band_percent),
                replay=replayed,
            )
        )
    return proofs


def gain(before: Result, after: Result) -> float:
    """How much better: the log ratio of throughput (goodput under targets) plus a quarter of each latency's.

    Latencies are p50 and p99 of the first token, p99 between tokens and the mean time per output token.
    """
    rate = _ratio(before.throughput_output_tokens_per_s, after.throughput_output_tokens_per_s)
    if before.targets.any:
        rate = _ratio(before.goodput_requests_per_s, after.goodput_requests_per_s) + 0.1 * rate
    pairs = (
        _latency(before.ttft_ms, after.ttft_ms, "p50"),
        _latency(before.ttft_ms, after.ttft_ms, "p99"),
        _latency(before.itl_ms, after.itl_ms, "p99"),
        _latency(before.tpot_ms, after.tpot_ms, "mean"),
    )
    return rate + LATENCY_WEIGHT * sum(pairs)


def _ratio(before: float, after: float) -> float:
    return _clip(math.log(max(after, 1e-6) / max(before, 1e-6)))


def _latency(before: Distribution | None, after: Distribution | None, name: str) -> float:
    """Above 0 when the latency falls. Below a millisecond nothing matters."""
    if before is None or after is None:
        return 0.0
    return _clip(math.log(max(getattr(before, name), 1.0) / max(getattr(after, name), 1.0)))


def _clip(value: float) -> float:
    return min(MOST, max(-MOST, value))


def predicted(before: Result, after: Result, band_percent: float) -> Mapping[str, Change]:
    """The figures that change, each with the range: the change itself is good to `band_percent`."""
    rows = {
        "output_tokens_per_s": (before.throughput_output_tokens_per_s, after.throughput_output_tokens_per_s),
        "ttft_p50_ms": _pair(before.ttft_ms, after.ttft_ms, "p50"),
        "ttft_p99_ms": _pair(before.ttft_ms, after.ttft_ms, "p99"),
        "tpot_mean_ms": _pair(before.tpot_ms, after.tpot_ms, "mean"),
        "itl_p99_ms": _pair(before.itl_ms, after.itl_ms, "p99"),
    }
    if before.targets.any:
        rows["goodput_requests_per_s"] = (before.goodput_requests_per_s, after.goodput_requests_per_s)
    if before.preemptions or after.preemptions:
        rows["preemptions"] = (float(before.preemptions or 0), float(after.preemptions or 0))
    return {name: _change(*pair, band_percent) for name, pair in rows.items() if pair is not None}


def _pair(before: Distribution | None, after: Distribution | None, name: str) -> tuple[float, float] | None:
    if before is None or after is None:
        return None
    return getattr(before, name), getattr(after, name)


def _change(before: float, after: float, band_percent: float) -> Change:
    spread = abs(after) * band_percent / 100
    return Change(before=before, after=after, low=max(0.0, after - spread), high=after + spread)


def best_pair(rig: Rig, proofs: list[Proof]) -> Proof | None:
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
        why="both together",
    )
    found = prove(rig, [both])
    return found[0] if found and found[0].gain > first.gain + WORTH else None

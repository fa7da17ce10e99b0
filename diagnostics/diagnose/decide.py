"""The verdict: of what was replayed, the one knob that gains most, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, log

from ..simulate import Replay
from .demand import Demand
from .model import Confidence, Limit, Proof, Verdict, Worth
from .prove import REMEDY, WORTH, beyond_chance
from .situation import Situation
from .unexplained import FAR, as_measured, unexplained

EVIDENCE_WEIGHT = 3.0  # a mechanism seen at work counts so many times what a mere turn gains
CURE = 1.4  # while overloaded, a turn counts as a remedy only if it raises throughput by this factor
HARDLY_ANY = 0.01  # of the requests
LOSSY_WORTH = 0.04  # answers may change: something else that helps goes first


def ranked(proofs: Sequence[Proof]) -> list[Proof]:
    """Best first, of equals the one that was proposed first.

    A mechanism that the evidence shows and a replay confirms goes before what only a replay favours.
    """
    return sorted(proofs, key=lambda proof: (_confirmed(proof), round(weight(proof), 2)), reverse=True)


def _confirmed(proof: Proof) -> bool:
    return proof.proposal.from_evidence and proof.gain > WORTH


def weight(proof: Proof) -> float:
    """The gain as it ranks."""
    if proof.gain <= 0:
        return proof.gain
    gained = min(proof.gain, LOSSY_WORTH) if proof.proposal.lossy else proof.gain
    return gained * (EVIDENCE_WEIGHT if proof.proposal.from_evidence else 1.0) * _cure(proof)


def _cure(proof: Proof) -> float:
    """A turn that ends preemption altogether goes before one that eases it."""
    before, after = proof.before.preemptions or 0, proof.after.preemptions or 0
    if proof.proposal.bottleneck != "preemption" or not before:
        return 1.0
    return 3.0 if after == 0 else 1.0


def decide(
    situation: Situation,
    proofs: Sequence[Proof],
    seen: Replay,
    limits: Sequence[Limit],
    confidence: Confidence,
    asked: Demand,
) -> Verdict:
    """The first of the ranked proofs that is worth acting on; otherwise what holds it back that no knob moves."""
    beyond = _beyond_physics(situation, limits, proofs, confidence)
    if beyond is not None:
        return beyond
    order = ranked(proofs)
    best = next((proof for proof in order if proof.worth == "gains"), None)
    if best is not None and not _beside_the_point(situation, best, seen, confidence):
        told = best.proposal
        return Verdict(
            bottleneck=told.bottleneck,
            knob=told.knob,
            before=told.before,
            after=told.after,
            beside=told.beside,
            why=told.why,
            confidence=confidence,
            predicted=best.predicted,
            advice=told.advice,
            telling=best.telling,
        )
    if asked.overloaded:
        return _offered_load(seen, order, confidence, asked)
    return _healthy(seen, order, confidence)


def _beside_the_point(situation: Situation, best: Proof, seen: Replay, confidence: Confidence) -> bool:
    """Whether a replay alone favours a turn, and does not give what is seen by far more than the turn gains."""
    if best.proposal.from_evidence or confidence != "simulated":
        return False
    told = situation.workload or situation.evidence.load or situation.concurrency or situation.rate_per_s
    return (
        bool(told)
        and best.gain < log(FAR)
        and bool(unexplained(situation, as_measured(seen), exp(best.gain)))
    )


def judged(
    situation: Situation, proofs: Iterable[Proof], limits: Sequence[Limit], asked: Demand
) -> list[Proof]:
    """The proofs with what each turn is worth to whoever asks: what the verdict acts on and its table says."""
    found = [replace(proof, worth=_worth(situation, proof, asked)) for proof in proofs]
    if unreachable(situation, limits, found) is None:
        return found
    return [
        replace(p, worth="gains, and the target stays out of reach") if p.gain > WORTH else p for p in found
    ]


def _worth(situation: Situation, proof: Proof, asked: Demand) -> Worth:
    """Whether a turn is a remedy.

    A small gain does not cure an overload. A server that keeps its targets needs none. What is won in one figure and
    lost in another is no remedy unless somebody asked for the first.
    """
    if proof.gain < -WORTH:
        return "loses"
    if proof.gain <= WORTH:
        return "nothing to gain"
    if asked.overloaded and not _cures(proof, asked):
        return "gains, and the load stays above capacity"
    if not asked.overloaded and _piles_up(proof, asked):
        return "gains, and the load is above capacity then"
    if situation.behind_a_queue and not _comes_sooner(proof):
        return "gains one thing for another"
    if proof.proposal.from_evidence:
        return "gains"
    if _misses_as_many(proof):
        return "gains, and as many requests miss the targets"
    if proof.before.targets.any and proof.before.keeps_targets and proof.times_done <= 1 + WORTH:
        return "nothing to gain"
    if proof.before.targets.any and not proof.before.keeps_targets and proof.after.keeps_targets:
        return "gains"
    if _gets_through_more(proof, asked):
        return "gains"
    wanted = situation.targets.any or situation.stalled_ttft is not None or situation.spiky_gaps is not None
    if not wanted and _cure(proof) == 1.0 and _trades(proof):
        return "gains one thing for another"
    return "gains" if proof.gain > (REMEDY if not situation.complaint else 0.05) else "gains a little"


def _cures(proof: Proof, asked: Demand) -> bool:
    """Whether an overloaded server gets through what arrives with the turn, or through so much more.

    What the evidence shows at work is worth mending before servers are added.
    """
    enough = 1 + REMEDY if proof.proposal.from_evidence else CURE
    if asked.far_above:
        return proof.times_done >= enough
    carried = asked.carried(proof.proposal.turned)
    if carried is None:
        return not proof.after.saturated or proof.times_done >= CURE
    return carried or (asked.times(proof.proposal.turned) or 0.0) >= enough


def _gets_through_more(proof: Proof, asked: Demand) -> bool:
    """Whether copies on the same devices get through more once they are full: what this load, which may not fill them,
    shows less of.
    """
    if proof.proposal.bottleneck != "communication" or proof.before.targets.any:
        return False
    return (asked.times(proof.proposal.turned) or 0.0) >= 1 + REMEDY


def _piles_up(proof: Proof, asked: Demand) -> bool:
    """Whether a server that carries the load does not with the turn, however good the requests are that it gets to."""
    suspect = proof.after.saturated or proof.times_done < 1 - WORTH
    return suspect and asked.carried(proof.proposal.turned) is False


def _comes_sooner(proof: Proof) -> bool:
    """Whether half the first tokens come in a fourth of the time, or less: more slots alone halve it."""
    before, after = proof.before.ttft_ms, proof.after.ttft_ms
    return before is not None and after is not None and after.p50 <= before.p50 / 4


def _misses_as_many(proof: Proof) -> bool:
    """Whether targets are missed with the turn and no more requests keep them than without, by more than chance."""
    before, after = proof.before, proof.after
    if not before.targets.any or after.keeps_targets:
        return False
    return after.good_share <= before.good_share or not beyond_chance(before, after)


def _trades(proof: Proof) -> bool:
    """Whether throughput falls or requests take longer in all, by more than a little."""
    before, after = proof.before, proof.after
    if proof.times_done < 0.97:
        return True
    return bool(
        before.e2e_ms
        and after.e2e_ms
        and after.e2e_ms.mean > 1.05 * before.e2e_ms.mean
        and after.e2e_ms.mean > before.e2e_ms.mean + 1
    )


def unreachable(
    situation: Situation, limits: Sequence[Limit], proofs: Sequence[Proof]
) -> tuple[float, Limit] | None:
    """A target that the device cannot meet even with one sequence, and the floor above it.

    None where a turn keeps it: one that reuses prefixes or drafts tokens lowers the floor itself.
    """
    if any(proof.after.keeps_targets for proof in proofs):
        return None
    floors = {limit.name: limit for limit in limits}
    for name, target in (
        ("tpot_floor_ms", situation.targets.tpot_ms),
        ("tpot_floor_ms", situation.targets.itl_ms),
        ("ttft_floor_ms", situation.targets.ttft_ms),
    ):
        if (floor := floors.get(name)) is not None and target is not None and target < floor.value:
            return target, floor
    return None


def _beyond_physics(
    situation: Situation, limits: Sequence[Limit], proofs: Sequence[Proof], confidence: Confidence
) -> Verdict | None:
    found = unreachable(situation, limits, proofs)
    if found is None:
        return None
    target, floor = found
    return Verdict(
        bottleneck="weight_bandwidth" if floor.name == "tpot_floor_ms" else "compute",
        why=f"the target of {target:g} ms is below what the device can do: {floor.why}, takes {floor.value:.1f} ms with "
        "nothing else running. More or faster devices, a smaller model or smaller weights are needed",
        confidence=confidence,
    )


def _offered_load(seen: Replay, order: Sequence[Proof], confidence: Confidence, asked: Demand) -> Verdict:
    best = order[0] if order and order[0].gain > 0 else None
    if best is None:
        tried = "no knob gains anything"
    elif best.after.targets.any and best.after.good_share < HARDLY_ANY:
        tried = f"with no knob turned do as many as {HARDLY_ANY:.0%} of the requests keep the targets"
    else:
        tried = f"the best knob ({best.proposal.text}) {_change(best, asked)}"
    if asked.done_per_s is not None:
        through = f"{asked.done_per_s:.3g} are done, the server full"
    else:
        through = f"{seen.result.throughput_requests_per_s:.2g} are done, filling and emptying included"
    rate = asked.rate_per_s
    shown = (
        f"{rate:.3g} requests a second arrive and {through}"
        if rate
        else f"requests pile up: {through} a second"
    )
    return Verdict(
        bottleneck="offered_load",
        why=f"the load is above capacity: {shown}; {tried}. Less load or more servers are needed",
        confidence=confidence,
    )


def _change(proof: Proof, asked: Demand) -> str:
    """What a turn does to what was asked for: good requests under targets, what a full server gets through without."""
    before, after = proof.before, proof.after
    if before.targets.any:
        return (
            f"takes goodput from {before.goodput_requests_per_s:.3g} to {after.goodput_requests_per_s:.3g} "
            "requests/s"
        )
    if asked.done_per_s and not asked.far_above and (times := asked.times(proof.proposal.turned)):
        return f"takes that to {asked.done_per_s * times:.3g}"
    return f"changes output by {(proof.times_done - 1) * 100:+.0f} %"


def _healthy(seen: Replay, order: Sequence[Proof], confidence: Confidence) -> Verdict:
    told = "no knob turned alone gains more than a little"
    trade = next((p for p in order if p.worth == "gains one thing for another"), None)
    if trade is not None:
        told = (
            f"no knob gains without losing elsewhere ({trade.proposal.text} gains one thing for another; targets, --slo, say "
            "what counts)"
        )
    if refused := _refused(seen):
        told = f"{refused}, and {told}"
    missed = seen.result.targets.any and not seen.result.keeps_targets
    if missed:
        told = f"{1 - seen.result.good_share:.0%} of the requests miss the targets, and {told}"
    elif seen.result.targets.any:
        told = f"the load keeps its targets, and {told}"
    why = f"{told}; {_binding(seen)}"
    return Verdict(bottleneck="none", why=why, confidence=confidence, missed=missed)


LARGE_STEP = 256  # tokens: beyond it a product's arithmetic takes longer than reading its weights


def _refused(seen: Replay) -> str:
    """How many requests are not run at all, and why; empty where all are."""
    errors, result = seen.result.errors, seen.result
    why = max(errors, key=lambda name: errors[name], default="")
    return f"{result.failed / result.requests:.0%} of the requests are refused ({why})" if why else ""


_BINDING: dict[str, str] = {
    "weight_bandwidth": f"reading weights (the matrix products of steps of fewer than {LARGE_STEP} tokens)",
    "kv_bandwidth": "reading the KV cache (attention of decodes)",
    "compute": f"prompts' arithmetic (the matrix products of steps of {LARGE_STEP} tokens and more, and attention of prompts)",
    "communication": "exchanging parts between devices",
    "kernel_launch": "launching kernels",
    "host": "work on the host",
}


def _binding(seen: Replay) -> str:
    """What the largest part of the steps' time goes to, and how much it is."""
    log = seen.log
    shares = log.shares()
    tokens = log.column("decodes") + log.column("prefill_tokens")
    products = log.part_ms("gemm") + log.part_ms("experts") + log.part_ms("head")
    total = max(float(log.parts.sum()), 1e-12)
    big = tokens >= LARGE_STEP
    amounts = {
        "weight_bandwidth": float(products[~big].sum()) / total + shares["transfer"],
        "compute": float(products[big].sum()) / total + shares["prefill_attention"],
        "kv_bandwidth": shares["decode_attention"],
        "communication": shares["communication"],
        "kernel_launch": shares["launch"],
        "host": shares["host"],
    }
    largest = max(amounts, key=lambda name: amounts[name])
    return f"of the steps' time the largest part, {amounts[largest]:.0%}, goes to {_BINDING[largest]}"

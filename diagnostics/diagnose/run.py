"""The diagnosis from end to end: settle, budget, fit the load, replay, turn each knob, replay again, decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from ...core.config import load_config
from ...core.errors import CamshaftError
from ...core.workload import Workload, load_workload
from ..evidence import Contradiction, Evidence, Setting, contradictions
from ..loads import load_text
from ..results import Targets
from ..simulate import Prepared, Replay, prepare
from ..simulate.steady import capacity_per_s, settles
from .decide import decide, judged, overloaded, ranked
from .dialect import in_sglang
from .ends import Ends, as_it_is, at_the_ends, kept, none_at_the_ends, play_ends
from .facts import about, memory, missing, title, told, wrong_release
from .fit import fit, plain_and_drafted_ms
from .fitted_cost import acceptance_of_each
from .flags import flag_traps, has_knobs
from .limits import hardware_limits, seen_limits
from .load import fitted_load, paced
from .memory import refused_at_start, refused_by_budget
from .model import Confidence, Limit, Proof, Report, Verdict
from .prove import WORTH, Objective, best_pair, prove, then_also
from .rig import FittedRig, Rig, SimulatedRig
from .rules import ALL, Rule, propose
from .servers import Servers, servers_for
from .situation import Situation, measured_kv_tokens
from .subject import Subject, placed
from .turns import turns
from .unexplained import unexplained

MOST_REQUESTS = 256  # of a replay: enough for a steady state, and each takes a second or two
FULL_S = 40  # seconds of arrivals at a rate: a queue is then seen to grow
AT_A_RATE = (160, 1024)  # the fewest requests, which take many steps where few run at once, and the most
MOST_ALTERNATIVES = 6
SURE = 1.02  # times the rate of a full server: above it work piles up
SLOWER = 1.25  # times the predicted time of a token: beyond it the prediction misses something

Tell = Callable[[str], None]


def diagnose(
    subject: Subject,
    evidence: Evidence,
    *,
    workload: Workload | None = None,
    targets: Targets | None = None,
    rules: tuple[Rule, ...] = ALL,
    tell: Tell = lambda _: None,
) -> Report:
    """The report. `rules` propose knobs from the evidence; without any the replays of every turn decide alone.

    `tell` hears what is replayed next. Raises ConfigError where the configuration contradicts itself.
    """
    report = _diagnosed(subject, evidence, workload, targets, rules, tell)
    verdict = _doubted(report.verdict, wrong_release(subject, evidence))
    report = replace(report, verdict=verdict, by_hand=verdict.knob in subject.given)
    return in_sglang(report) if subject.sglang else report


def _doubted(verdict: Verdict, doubt: str | None) -> Verdict:
    """A verdict on a server that runs, with what speaks against the release that is assumed for it."""
    if doubt is None or verdict.bottleneck in ("kv_does_not_fit", "refused"):
        return verdict
    if verdict.knob is None:
        return replace(verdict, why=f"{doubt}. As if it were that one: {verdict.why}", confidence="thin")
    told = f"{doubt[0].upper()}{doubt[1:]}"
    return replace(verdict, advice=f"{verdict.advice}. {told}" if verdict.advice else told)


def _diagnosed(
    subject: Subject,
    evidence: Evidence,
    workload: Workload | None,
    targets: Targets | None,
    rules: tuple[Rule, ...],
    tell: Tell,
) -> Report:
    prepared = _prepared(subject, evidence, targets or Targets())
    workload = paced(workload, evidence)
    situation = Situation(
        subject, evidence, targets or Targets(), _effective(prepared, subject), workload or evidence.trace
    )
    found = tuple(f"{c.what} ({', '.join(c.sources)})" for c in _contradictions(subject, evidence))
    report = Report(
        title=title(subject),
        about=about(subject),
        verdict=_undecided(found),
        memory=memory(prepared, evidence),
        evidence=told(evidence),
        contradictions=found,
        assumptions=(*subject.notes, *evidence.notes),
        flags=flag_traps(subject),
    )
    refused = refused_at_start(situation)
    impossible = prepared is not None and not prepared.budget.fits
    if prepared is not None and impossible and (refused is None or refused.confidence == "thin"):
        refused = refused_by_budget(prepared, situation)
    if refused is not None:
        return replace(
            report,
            verdict=refused,
            assumptions=(*report.assumptions, *(prepared.assumptions if prepared else ())),
        )
    if prepared is None and evidence.thin and workload is None:
        return replace(report, verdict=_too_thin(subject))
    if found and not _told_enough(evidence, found):
        return report
    return _replayed(report, situation, prepared, workload, rules, tell)


def _replayed(
    report: Report,
    situation: Situation,
    prepared: Prepared | None,
    workload: Workload | None,
    rules: tuple[Rule, ...],
    tell: Tell,
) -> Report:
    tell("replaying the load as it is")
    rig, limits = _rig(situation, prepared, workload)
    try:
        seen = rig.play({})
    except CamshaftError as error:
        verdict = replace(
            report.verdict, bottleneck="none", why=f"the load cannot be replayed: {error}", confidence="thin"
        )
        return replace(report, verdict=verdict)
    proposals = propose(situation, rules)
    possible = [
        proposal
        for proposal in (*proposals, *turns(situation, seen))
        if has_knobs(situation.subject, proposal.turned)
    ]
    unique = {repr(sorted(p.turned.items())): p for p in reversed(possible)}
    objective = Objective.of(situation, seen.result)
    tell("replaying it with knobs turned, one at a time")
    proofs = ranked(judged(situation, prove(rig, reversed(unique.values()), objective), seen.result, limits))
    capacity = _capacity(rig, situation, seen)
    verdict = decide(situation, proofs, seen, limits, _confidence(rig, situation), capacity)
    if _rests_on_assumed_steps(verdict, rig, situation):
        verdict = _too_thin(situation.subject)
    pair = best_pair(rig, proofs, objective)
    chosen = next(
        (p for p in proofs if p.proposal.knob == verdict.knob and p.proposal.after == verdict.after), None
    )
    others = [proof for proof in proofs if proof is not chosen and abs(proof.gain) > 0.005]
    told = [*judged(situation, [pair] if pair else [], seen.result, limits), *others[:MOST_ALTERNATIVES]]
    tried = chosen or (_runner_up(verdict, proofs) if seen.result.targets.any else None)
    tell("replaying it with all steps faster and slower")
    ends = play_ends(rig, tried.proposal.turned if tried else None)
    verdict = _within_error(rig, verdict, tried, ends, objective)
    gap = None
    if isinstance(rig, SimulatedRig) and (workload is not None or _says_load(situation)):
        gap = unexplained(situation, seen.result)
    if gap and verdict.bottleneck == "none":
        verdict, gap = replace(verdict, why=f"{gap}. Of what is modelled, {verdict.why}"), None
    elif gap and verdict.at_the_ends:
        verdict, gap = replace(verdict, at_the_ends=f"{verdict.at_the_ends}. But {gap}"), None
    servers = _servers(rig, situation, verdict, chosen, proofs, capacity, tell)
    if servers is not None and verdict.knob is None:
        verdict = replace(verdict, why=f"{verdict.why}. {servers.sentence()}")
    verdict = replace(verdict, advice=". ".join(_advice(verdict, chosen, pair, servers, prepared, limits)))
    return replace(
        report,
        verdict=verdict,
        alternatives=tuple(told),
        about={**report.about, "load": load_text(rig.workload)},
        slo=kept(seen, ends) if seen.result.targets.any else {},
        as_it_is=as_it_is(seen, ends, objective),
        error_percent=ends.percent if ends is not None else 0.0,
        servers=servers.to_dict() if servers is not None else {},
        limits=(*limits, *seen_limits(seen)),
        assumptions=(*report.assumptions, *rig.assumptions, *([gap] if gap else [])),
        before=seen,
        after=chosen.replay if chosen else None,
    )


def _advice(
    verdict: Verdict,
    chosen: Proof | None,
    pair: Proof | None,
    servers: Servers | None,
    prepared: Prepared | None,
    limits: Sequence[Limit],
) -> list[str]:
    """What else there is to say to whoever turns the knob, a sentence each."""
    advice = [verdict.advice] if verdict.advice else []
    if chosen is not None and pair is not None and (more := then_also(chosen, pair)):
        advice.append(more)
    held = next((int(limit.value) for limit in limits if limit.name == "sequences_held"), None)
    if verdict.knob == "max_num_seqs" and chosen is not None and held and held < verdict.after:
        advice.append(
            f"The KV cache holds {held} full sequences: more run at once while most are not yet full, and the replay counts "
            f"{chosen.after.preemptions or 0} preemptions"
        )
    if chosen is not None and chosen.after.targets.any and not chosen.after.keeps_targets:
        advice.append(f"Even so {1 - chosen.after.good_share:.0%} of the requests miss the targets")
    if servers is not None and verdict.knob is not None:
        advice.append(servers.sentence())
    if prepared is not None and prepared.flashinfer and not advice:
        advice.append("Without FlashInfer installed it does not start: see the assumptions")
    return advice


def _capacity(rig: Rig, situation: Situation, seen: Replay) -> float | None:
    """Requests that the server as it is gets through in a second while it is full; None where it is not overloaded."""
    if not overloaded(situation, seen.result):
        return None
    try:
        long = rig.at_rate(situation.rate_per_s).play({}) if situation.rate_per_s else seen
    except CamshaftError:
        long = seen
    return capacity_per_s(long)


def _servers(
    rig: Rig,
    situation: Situation,
    verdict: Verdict,
    chosen: Proof | None,
    proofs: Sequence[Proof],
    capacity: float | None,
    tell: Tell,
) -> Servers | None:
    """How many servers the rate needs, where one does not keep up or keeps no targets even with the knob turned."""
    rate = situation.rate_per_s
    if not rate or situation.evidence.hint("concurrency") or verdict.confidence == "thin":
        return None
    as_it_is = rig.play({})
    seen = as_it_is if chosen is None or chosen.replay is None else chosen.replay
    enough = settles(seen) and (seen.result.keeps_targets or not seen.result.targets.any)
    if verdict.bottleneck != "offered_load" and (enough or (chosen is None and verdict.bottleneck != "none")):
        return None
    done = situation.figure("completed_per_s") or (SURE * capacity if capacity else rate)
    piles_up = verdict.bottleneck == "offered_load" or not settles(as_it_is)
    tell(f"counting the servers for {rate:g} requests a second, by replays of equal shares")
    return servers_for(
        rig,
        rate,
        proofs,
        max(2 if piles_up else 1, math.ceil(rate / done)),
        lambda share: [turn for turn in turns(situation, share) if has_knobs(situation.subject, turn.turned)],
    )


def _runner_up(verdict: Verdict, proofs: Sequence[Proof]) -> Proof | None:
    """Where no knob is wrong, the turn that might be a remedy were steps slower or faster."""
    if verdict.bottleneck != "none":
        return None
    return next((proof for proof in proofs if proof.gain > -WORTH and not proof.proposal.lossy), None)


def _within_error(
    rig: Rig, verdict: Verdict, tried: Proof | None, ends: Ends | None, objective: Objective
) -> Verdict:
    """The verdict with what becomes of it at the ends of the error."""
    if tried is None or ends is None:
        return verdict
    if verdict.knob is not None:
        return at_the_ends(verdict, tried, ends, objective, rig)
    return none_at_the_ends(verdict, tried, ends, objective)


def _confidence(rig: Rig, situation: Situation) -> Confidence:
    if isinstance(rig, FittedRig) and rig.band_percent >= 50 and not situation.complaint:
        return "thin"
    return rig.confidence


def _rests_on_assumed_steps(verdict: Verdict, rig: Rig, situation: Situation) -> bool:
    """Whether a verdict without a knob has nothing behind it but a replay whose step times nobody told."""
    if not (isinstance(rig, FittedRig) and rig.band_percent >= 50):
        return False
    piles_up = situation.figure("completed_per_s") or situation.evidence.trend("waiting") == "rising"
    return verdict.bottleneck == "none" or (verdict.bottleneck == "offered_load" and not piles_up)


def _prepared(subject: Subject, evidence: Evidence, targets: Targets) -> Prepared | None:
    """The configuration on its device, where model and device are known."""
    if subject.hardware is None or subject.shape is None:
        return None
    values = {name: value for name, value in subject.given.items() if name != "num_speculative_tokens"}
    drafts = values.get("speculative_config")
    rate = evidence.value("acceptance_rate")
    if isinstance(drafts, Mapping) and rate and "acceptance" not in drafts:
        drafted = int(drafts.get("num_speculative_tokens") or 3)
        values["speculative_config"] = {**drafts, "acceptance": acceptance_of_each(rate, drafted)}
    with placed(subject):
        loaded = load_config({"model": subject.shape.name, **values}, purpose="inspect")
        found = prepare(loaded, subject.hardware, subject.shape, engine=subject.engine, targets=targets)
    holds = measured_kv_tokens(evidence)
    return found.holding(int(holds)) if holds else found


def _effective(prepared: Prepared | None, subject: Subject) -> dict[str, Any]:
    if prepared is None:
        return dict(subject.given)
    values = {name: entry.value for name, entry in prepared.values.items() if entry.value is not None}
    return {**prepared.foreign, **values}


def _rig(
    situation: Situation, prepared: Prepared | None, workload: Workload | None
) -> tuple[Rig, list[Limit]]:
    """What to replay on: the cost model where model and device are known, step times fitted from the evidence otherwise."""
    if prepared is None or None not in plain_and_drafted_ms(situation):
        return fit(situation, workload), []
    chosen, notes = workload, ()
    if chosen is None and _says_load(situation):
        load = fitted_load(situation)
        chosen, notes = load.workload, load.assumptions
    elif chosen is None:
        chosen, notes = (
            situation.evidence.trace or load_workload("chat"),
            ("the load is the preset chat: none was given",),
        )
    chosen = _bounded(chosen)
    rig = SimulatedRig(prepared, chosen, assumptions=(*prepared.assumptions, *notes))
    return _as_slow_as_seen(rig, situation), hardware_limits(prepared, chosen)


def _as_slow_as_seen(rig: SimulatedRig, situation: Situation) -> SimulatedRig:
    """In eager mode a host may launch kernels slower than the sheet's: as slow as the observed step says."""
    prepared = rig.prepared
    told = situation.figure("tpot_ms", "mean", "p50") or situation.figure("itl_ms", "p50", "mean")
    if prepared.value("enforce_eager") is not True or not told or situation.speculation:
        return rig
    try:
        replayed = rig.play({}).result.tpot_ms
    except CamshaftError:
        return rig
    if replayed is None or told < SLOWER * replayed.p50:
        return rig
    each_us = told * 1e3 / prepared.shape.num_layers
    host = structs.replace(prepared.hardware.host, eager_layer_launch_us=each_us)
    slow = prepare(
        prepared.loaded,
        structs.replace(prepared.hardware, host=host),
        prepared.shape,
        engine=prepared.engine,
        targets=prepared.targets,
        unseen_bytes=prepared.unseen_bytes,
    )
    note = (
        f"launching a layer's kernels takes {each_us:,.0f} us here: a token takes {told:g} ms and the device needs "
        f"{replayed.p50:.1f} ms for it"
    )
    return SimulatedRig(slow, rig.workload, rig.stop_after_s, assumptions=(*rig.assumptions, note))


def _says_load(situation: Situation) -> bool:
    return bool(situation.evidence.load or situation.concurrency or situation.rate_per_s)


def _bounded(workload: Workload) -> Workload:
    """So many requests that a diagnosis stays quick: twice as many as run at once, or what arrives in FULL_S."""
    wanted = max(MOST_REQUESTS, 2 * (workload.concurrency or 0))
    fewest, most = AT_A_RATE
    if workload.shape.arrival.kind == "sessions":
        return workload.first(max(8, min(32, 2 * (workload.concurrency or 8))))
    if rate := workload.summary().rate:
        wanted = max(fewest, min(most, round(FULL_S * rate)))
    return workload.first(wanted) if workload.count > wanted else workload


def _undecided(found: Sequence[str]) -> Verdict:
    return Verdict(
        bottleneck="none",
        why=f"the evidence contradicts itself: {'; '.join(found)}. Nothing is concluded from it",
        confidence="thin",
    )


def _contradictions(subject: Subject, evidence: Evidence) -> list[Contradiction]:
    """Of the evidence, and between it and the configuration: one engine never runs more than its slots."""
    slots = subject.given.get("max_num_seqs")
    if slots is None or int(subject.given.get("data_parallel_size") or 1) > 1:
        return contradictions(evidence)
    told = Evidence(settings=[Setting(name="max_num_seqs", value=slots, source="the configuration")])
    return contradictions(told.merge(evidence))


def _told_enough(evidence: Evidence, found: Sequence[str]) -> bool:
    """Whether what contradicts itself is a small part of what was told."""
    return len(found) * 4 <= len(evidence.figures) + len(evidence.events)


def _too_thin(subject: Subject) -> Verdict:
    return Verdict(
        bottleneck="none",
        why=f"too little is known for a verdict: name {missing(subject)}, or show how long its steps take (a "
        "log, a metrics page or figures such as tpot_ms: --log, --metrics, --observed)",
        confidence="thin",
    )

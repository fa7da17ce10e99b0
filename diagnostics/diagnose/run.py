"""The diagnosis from end to end: settle, budget, fit the load, replay, turn each knob, replay again, decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.errors import CamshaftError
from ...core.workload import Workload
from ..evidence import Contradiction, Evidence, Setting, contradictions
from ..loads import load_text
from ..results import Targets
from ..simulate import Prepared
from .choose import effective, prepared_for, rig_for, says_load
from .decide import decide, judged, ranked
from .demand import Demand, demand
from .dialect import in_sglang
from .ends import Ends, as_it_is, at_the_ends, kept, none_at_the_ends, play_ends
from .facts import about, memory, missing, title, told, wrong_release
from .flags import flag_traps, has_knobs
from .limits import seen_limits
from .load import paced
from .memory import refused_at_start, refused_by_budget
from .model import Confidence, Limit, Proof, Report, Verdict
from .prove import WORTH, Objective, best_pair, prove, then_also
from .rig import FittedRig, Rig, SimulatedRig
from .rules import ALL, Rule, propose
from .servers import Servers, servers_for
from .situation import Situation
from .subject import Subject
from .turns import turns
from .unexplained import unexplained

MOST_ALTERNATIVES = 6

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
    prepared = prepared_for(subject, evidence, targets or Targets())
    workload = paced(workload, evidence)
    situation = Situation(
        subject, evidence, targets or Targets(), effective(prepared, subject), workload or evidence.trace
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
    rig, limits = rig_for(situation, prepared, workload)
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
    asked = demand(situation, rig)
    proofs = ranked(judged(situation, prove(rig, reversed(unique.values()), objective), limits, asked))
    verdict = decide(situation, proofs, seen, limits, _confidence(rig, situation), asked)
    if _rests_on_assumed_steps(verdict, rig, situation):
        verdict = _too_thin(situation.subject)
    pair = best_pair(rig, proofs, objective)
    chosen = next(
        (p for p in proofs if p.proposal.knob == verdict.knob and p.proposal.after == verdict.after), None
    )
    others = [proof for proof in proofs if proof is not chosen and abs(proof.gain) > 0.005]
    told = [*judged(situation, [pair] if pair else [], limits, asked), *others[:MOST_ALTERNATIVES]]
    tried = chosen or (_runner_up(verdict, proofs) if seen.result.targets.any else None)
    tell("replaying it with all steps faster and slower")
    ends = play_ends(rig, tried.proposal.turned if tried else None)
    verdict = _within_error(rig, verdict, tried, ends, objective, asked)
    gap = None
    if isinstance(rig, SimulatedRig) and (workload is not None or says_load(situation)):
        gap = unexplained(situation, seen.result)
    if gap and verdict.bottleneck == "none":
        verdict, gap = replace(verdict, why=f"{gap}. Of what is modelled, {verdict.why}"), None
    elif gap and verdict.at_the_ends:
        verdict, gap = replace(verdict, at_the_ends=f"{verdict.at_the_ends}. But {gap}"), None
    servers = _servers(rig, situation, verdict, chosen, proofs, asked, tell)
    if servers is not None and verdict.knob is None:
        verdict = replace(verdict, why=f"{verdict.why}. {servers.sentence()}")
    verdict = replace(
        verdict, advice=". ".join(_advice(verdict, chosen, pair, servers, prepared, limits, asked))
    )
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
    asked: Demand,
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
    if chosen is not None and asked.overloaded and (short := asked.short_of(chosen.proposal.turned)):
        advice.append(short)
    if servers is not None and verdict.knob is not None:
        advice.append(servers.sentence())
    if prepared is not None and prepared.flashinfer and not advice:
        advice.append("Without FlashInfer installed it does not start: see the assumptions")
    return advice


def _servers(
    rig: Rig,
    situation: Situation,
    verdict: Verdict,
    chosen: Proof | None,
    proofs: Sequence[Proof],
    asked: Demand,
    tell: Tell,
) -> Servers | None:
    """How many servers the rate needs, where one does not keep up or keeps no targets even with the knob turned."""
    rate = asked.rate_per_s
    if not rate or verdict.confidence == "thin":
        return None
    turned = {} if chosen is None else chosen.proposal.turned
    result = rig.play(turned).result
    carried = not asked.overloaded if chosen is None else asked.carried(turned)
    enough = carried and (result.keeps_targets or not result.targets.any)
    if verdict.bottleneck != "offered_load" and (enough or (chosen is None and verdict.bottleneck != "none")):
        return None
    tell(f"counting the servers for {rate:.3g} requests a second, by replays of equal shares")
    return servers_for(
        rig,
        rate,
        proofs,
        math.ceil(rate / asked.done_per_s) if asked.told and asked.done_per_s else 1,
        lambda share: [turn for turn in turns(situation, share) if has_knobs(situation.subject, turn.turned)],
    )


def _runner_up(verdict: Verdict, proofs: Sequence[Proof]) -> Proof | None:
    """Where no knob is wrong, the turn that might be a remedy were steps slower or faster."""
    if verdict.bottleneck != "none":
        return None
    return next((proof for proof in proofs if proof.gain > -WORTH and not proof.proposal.lossy), None)


def _within_error(
    rig: Rig, verdict: Verdict, tried: Proof | None, ends: Ends | None, objective: Objective, asked: Demand
) -> Verdict:
    """The verdict with what becomes of it at the ends of the error."""
    if verdict.knob is None and (turns := asked.turns_at(min(90.0, rig.band_percent))):
        told = f"this is within the error of the prediction: {turns}"
        return replace(verdict, at_the_ends=told, within_error=True)
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

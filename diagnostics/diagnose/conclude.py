"""What follows from the trials: the verdict, what becomes of it at the ends of the error, and what else there is to say."""

from __future__ import annotations

import math
from dataclasses import replace

from ..loads import load_text
from ..simulate import Prepared
from .choose import says_load
from .decide import decide
from .ends import Ends, as_it_is, at_the_ends, kept, none_at_the_ends, play_ends
from .facts import missing
from .limits import seen_limits
from .model import Confidence, Proof, Report, Verdict
from .prove import WORTH, then_also, together
from .rig import FittedRig, SimulatedRig
from .servers import Servers, servers_for
from .subject import Subject
from .trials import Tell, Trials, suggested
from .unexplained import unexplained

MOST_ALTERNATIVES = 6


def concluded(
    report: Report, trials: Trials, prepared: Prepared | None, load_given: bool, tell: Tell
) -> Report:
    """The report with all that the trials say. load_given: the load is the asker's own."""
    seen, rig = trials.seen, trials.rig
    verdict = _verdict(trials)
    chosen = next(
        (p for p in trials.proofs if p.proposal.knob == verdict.knob and p.proposal.after == verdict.after),
        None,
    )
    tried = chosen or (_runner_up(verdict, trials) if trials.targets_given else None)
    tell("replaying it with all steps faster and slower")
    ends = play_ends(rig, tried.proposal.turned if tried else None)
    verdict = _within_error(verdict, tried, ends, trials)
    verdict, gap = _with_gap(verdict, trials, load_given)
    servers = _servers(verdict, chosen, trials, tell)
    if servers is not None and verdict.knob is None:
        verdict = replace(verdict, why=f"{verdict.why}. {servers.sentence()}")
    advice = _advice(verdict, chosen, servers, prepared, trials)
    others = [proof for proof in trials.proofs if proof is not chosen and abs(proof.gain) > 0.005]
    return replace(
        report,
        verdict=replace(verdict, advice=". ".join(advice)),
        alternatives=(*filter(None, [trials.pair]), *others[:MOST_ALTERNATIVES]),
        about={**report.about, "load": load_text(rig.workload)},
        slo=kept(seen, ends) if trials.targets_given else {},
        as_it_is=as_it_is(seen, ends, trials.objective),
        steps="thin" if _assumed_steps(trials) else trials.rig.confidence,
        error_percent=ends.percent if ends is not None else 0.0,
        servers=servers.to_dict() if servers is not None else {},
        limits=(*trials.limits, *seen_limits(seen)),
        assumptions=(*report.assumptions, *rig.assumptions, *filter(None, [gap])),
        before=seen,
        after=chosen.replay if chosen else None,
    )


def _verdict(trials: Trials) -> Verdict:
    """The knob that is worth turning, or why there is none; with what two gain together where one alone does not."""
    verdict = decide(
        trials.situation, trials.proofs, trials.seen, trials.limits, _confidence(trials), trials.asked
    )
    if _rests_on_assumed_steps(verdict, trials):
        return too_thin(trials.situation.subject)
    pair = trials.pair
    if verdict.bottleneck == "none" and pair is not None and pair.worth == "gains":
        return replace(verdict, why=f"{verdict.why}. {together(pair)}")
    return verdict


def _confidence(trials: Trials) -> Confidence:
    return "thin" if _assumed_steps(trials) and not trials.situation.complaint else trials.rig.confidence


def _assumed_steps(trials: Trials) -> bool:
    return isinstance(trials.rig, FittedRig) and trials.rig.band_percent >= 50


def _rests_on_assumed_steps(verdict: Verdict, trials: Trials) -> bool:
    """Whether a verdict without a knob has nothing behind it but a replay whose step times nobody told."""
    if not _assumed_steps(trials):
        return False
    piles_up = trials.asked.told or trials.situation.evidence.trend("waiting") == "rising"
    return verdict.bottleneck == "none" or (verdict.bottleneck == "offered_load" and not piles_up)


def too_thin(subject: Subject) -> Verdict:
    """That nothing can be said, and what to name."""
    return Verdict(
        bottleneck="none",
        why=f"too little is known for a verdict: name {missing(subject)}, or show how long its steps take (a "
        "log, a metrics page or figures such as tpot_ms: --log, --metrics, --observed)",
        confidence="thin",
    )


def _runner_up(verdict: Verdict, trials: Trials) -> Proof | None:
    """Where no knob is wrong, the turn that might be a remedy were steps slower or faster."""
    if verdict.bottleneck != "none":
        return None
    return next((proof for proof in trials.proofs if proof.gain > -WORTH and not proof.proposal.lossy), None)


def _within_error(verdict: Verdict, tried: Proof | None, ends: Ends | None, trials: Trials) -> Verdict:
    """The verdict with what becomes of it at the ends of the error."""
    about_load = verdict.bottleneck in ("none", "offered_load") and verdict.confidence != "thin"
    if about_load and (turns := trials.asked.turns_at(min(90.0, trials.rig.band_percent))):
        told = f"this is within the error of the prediction: {turns}"
        return replace(verdict, at_the_ends=told, within_error=True)
    if tried is None or ends is None:
        return verdict
    if verdict.knob is not None:
        return at_the_ends(verdict, tried, ends, trials.objective, trials.rig)
    return none_at_the_ends(verdict, tried, ends, trials.objective)


def _with_gap(verdict: Verdict, trials: Trials, load_given: bool) -> tuple[Verdict, str | None]:
    """The verdict with what is seen and not explained; that alone where the verdict has no place for it."""
    if not isinstance(trials.rig, SimulatedRig):
        return verdict, None
    gap = unexplained(trials.situation, trials.seen.result, piles_up=trials.asked.overloaded)
    if not (load_given or says_load(trials.situation)):
        return (
            (_without_load(verdict, gap), None) if gap and verdict.bottleneck == "none" else (verdict, None)
        )
    if gap and verdict.bottleneck == "none":
        return replace(verdict, why=f"{gap}. Of what is modelled, {verdict.why}"), None
    if gap and verdict.at_the_ends:
        return replace(verdict, at_the_ends=f"{verdict.at_the_ends}. But {gap}"), None
    return verdict, gap


def _without_load(verdict: Verdict, gap: str) -> Verdict:
    """No verdict where nobody told the load and that which is assumed does not give what is seen."""
    why = f"nobody told the load: --rate or --concurrency, --workload or a log do. Of the one assumed, {gap}"
    return replace(verdict, why=why, confidence="thin", missed=False)


def _servers(verdict: Verdict, chosen: Proof | None, trials: Trials, tell: Tell) -> Servers | None:
    """How many servers the rate needs, where one does not keep up or keeps no targets even with the knob turned."""
    rig, asked, rate = trials.rig, trials.asked, trials.asked.rate_per_s
    if not rate or verdict.confidence == "thin":
        return None
    turned = {} if chosen is None else chosen.proposal.turned
    carried = not asked.overloaded if chosen is None else asked.carried(turned)
    enough = carried and (rig.play(turned).result.keeps_targets or not trials.targets_given)
    if verdict.bottleneck != "offered_load" and (enough or (chosen is None and verdict.bottleneck != "none")):
        return None
    tell(f"counting the servers for {rate:.3g} requests a second, by replays of equal shares")
    at_least = math.ceil(rate / asked.done_per_s) if asked.told and asked.done_per_s else 1
    return servers_for(rig, rate, trials.proofs, at_least, lambda share: suggested(trials.situation, share))


def _advice(
    verdict: Verdict, chosen: Proof | None, servers: Servers | None, prepared: Prepared | None, trials: Trials
) -> list[str]:
    """What else there is to say to whoever turns the knob, a sentence each."""
    advice = [verdict.advice] if verdict.advice else []
    advice += _of_the_turn(chosen, trials) if chosen is not None else []
    if servers is not None and verdict.knob is not None:
        advice.append(servers.sentence())
    if behind := trials.situation.behind_a_queue:
        advice.append(behind)
    if prepared is not None and prepared.flashinfer and not advice:
        advice.append("Without FlashInfer installed it does not start: see the assumptions")
    return advice


def _of_the_turn(chosen: Proof, trials: Trials) -> list[str]:
    """What a second knob adds, what the turn asks of the cache, and what it leaves undone."""
    told, turn, after = [], chosen.proposal, chosen.after
    if trials.pair is not None and (more := then_also(chosen, trials.pair)):
        told.append(more)
    held = next((int(limit.value) for limit in trials.limits if limit.name == "sequences_held"), None)
    if turn.knob == "max_num_seqs" and held and held < turn.after:
        told.append(
            f"The KV cache holds {held} full sequences: more run at once while most are not yet full, and the replay counts "
            f"{after.preemptions or 0} preemptions"
        )
    if after.targets.any and not after.keeps_targets:
        told.append(f"Even so {1 - after.good_share:.0%} of the requests miss the targets")
    if trials.asked.overloaded and (short := trials.asked.short_of(turn.turned)):
        told.append(short)
    return told

"""What follows from the trials: the verdict, what becomes of it at the ends of the error, and what else there is to say."""

from __future__ import annotations

import math
from dataclasses import replace

from ...core.errors import CamshaftError
from ...core.workload import Workload
from ..cost.speculation import SpeculativeCost
from ..loads import load_text
from ..simulate import Prepared, Replay
from ..simulate.steady import warm_up_s
from .choose import says_load
from .decide import decide
from .ends import Ends, as_it_is, at_the_ends, kept, none_at_the_ends, play_ends
from .facts import missing
from .figures import moved_text, number
from .limits import seen_limits
from .model import Confidence, Proof, Report, Verdict
from .prove import WORTH, then_also, together
from .rig import FittedRig, SimulatedRig
from .servers import Servers, servers_for
from .subject import Subject
from .trials import Tell, Trials, suggested
from .unexplained import as_measured, unexplained

MOST_ALTERNATIVES = 6
ANSWERS = "It may change answers a little: compare some before and after"
MORE_GAIN = 1.5  # times the gain of a turn that changes no answers
MORE_FULL = 1.15  # times what a full server gets through: copies are worth a word
MOST_OF_TARGET = 0.5  # of a first token's: beyond it there is little room to wait
MORE_CLIENTS = 4  # times as many are tried
MORE_DONE = 1.5  # times the throughput with them: the server had room


def concluded(
    report: Report, trials: Trials, prepared: Prepared | None, load_given: bool, tell: Tell
) -> Report:
    """The report with all that the trials say. load_given: the load is the asker's own."""
    seen, rig = trials.seen, trials.rig
    verdict = _verdict(trials)
    chosen = next(
        (p for p in trials.proofs if verdict.knob == p.proposal.knob and verdict.turned == p.proposal.turned),
        None,
    )
    tried = chosen or (_runner_up(verdict, trials) if trials.targets_given else None)
    tell("replaying it with all steps faster and slower")
    ends = play_ends(rig, tried.proposal.turned if tried else None)
    verdict = _within_error(verdict, tried, ends, trials)
    verdict = _with_gap(verdict, trials, load_given)
    if idles := _few_clients(verdict, trials):
        verdict = replace(verdict, why=f"{verdict.why}. {idles}")
    servers = _servers(verdict, chosen, trials, tell)
    if servers is not None and verdict.knob is None:
        verdict = replace(verdict, why=f"{verdict.why}. {servers.sentence()}")
    advice = _advice(verdict, chosen, servers, prepared, trials)
    others = [proof for proof in trials.proofs if proof is not chosen and abs(proof.gain) > 0.005]
    return replace(
        report,
        verdict=replace(verdict, advice=". ".join(advice)),
        alternatives=(*filter(None, [trials.pair]), *others[:MOST_ALTERNATIVES]),
        about={**report.about, "load": f"{load_text(rig.workload)}{_uncounted(seen, rig.workload)}"},
        slo=kept(seen, ends) if trials.targets_given else {},
        as_it_is=as_it_is(seen, ends, trials.objective),
        steps="thin" if _assumed_steps(trials) else trials.rig.confidence,
        error_percent=ends.percent if ends is not None else 0.0,
        servers=servers.to_dict() if servers is not None else {},
        limits=(*trials.limits, *seen_limits(seen)),
        assumptions=(*report.assumptions, *rig.assumptions),
        before=seen,
        after=chosen.replay if chosen else None,
    )


def _uncounted(seen: Replay, load: Workload) -> str:
    """Which requests are in no figure, so that a reader may compare them with those of another replay."""
    if seen.from_start is not None:
        return "; what is sent before each of them has its first token is left out of the latencies"
    seconds = warm_up_s(load)
    return f"; those of the first {seconds:.0f} s, while the server fills, are not counted" if seconds else ""


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
    if about_load and (turns := trials.asked.turns_at(trials.rig.band_percent)):
        told = f"this is within the error of the prediction: {turns}"
        return replace(verdict, at_the_ends=told, within_error=True)
    if tried is None or ends is None:
        return verdict
    if verdict.knob is not None:
        return at_the_ends(verdict, tried, ends, trials.objective, trials.rig)
    return none_at_the_ends(verdict, tried, ends, trials.objective)


def _with_gap(verdict: Verdict, trials: Trials, load_given: bool) -> Verdict:
    """The verdict with what is seen and not explained."""
    if not isinstance(trials.rig, SimulatedRig):
        return verdict
    gap = unexplained(trials.situation, as_measured(trials.seen), piles_up=trials.asked.overloaded)
    if gap is None:
        return verdict
    if verdict.bottleneck != "none":
        named = load_given or says_load(trials.situation)
        return replace(verdict, unexplained=gap) if named else verdict
    if load_given or says_load(trials.situation):
        return replace(verdict, why=f"{gap}. Of what is modelled, {verdict.why}", unexplained=gap)
    return _without_load(verdict, gap)


def _few_clients(verdict: Verdict, trials: Trials) -> str:
    """That a server waits for its clients, by a replay of so many times more of them; empty where it does not."""
    load, seen = trials.rig.workload, trials.seen.result
    closed = load.shape.arrival.kind == "closed" and load.concurrency is not None
    if not closed or verdict.bottleneck != "none" or verdict.missed or verdict.confidence == "thin":
        return ""
    if trials.seen.log.blocked.get("no_slot") or trials.seen.log.blocked.get("no_blocks"):
        return ""
    clients = MORE_CLIENTS * (load.concurrency or 1)
    try:
        more = (
            trials.rig.steady({})
            .play(load.first(max(load.count, 2 * clients)).at_concurrency(clients))
            .result
        )
    except CamshaftError:
        return ""
    before, after = seen.throughput_output_tokens_per_s, more.throughput_output_tokens_per_s
    if after < MORE_DONE * before or seen.tpot_ms is None or more.tpot_ms is None:
        return ""
    return (
        f"The clients are the limit: {load.concurrency} at once wait for their answers and the server never makes them "
        f"queue; {clients} would get {number(after)} instead of {number(before)} tokens/s, at {more.tpot_ms.mean:.3g} instead "
        f"of {seen.tpot_ms.mean:.3g} ms a token"
    )


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
    found = servers_for(
        rig, rate, trials.proofs, at_least, lambda share: suggested(trials.situation, share), tell
    )
    return replace(found, because=_no_room_to_wait(trials)) if found is not None and found.far_more else found


def _no_room_to_wait(trials: Trials) -> str:
    """That one request alone takes most of the time which a target leaves it; empty where it does not."""
    targets = trials.situation.targets
    floors = {limit.name: limit.value for limit in trials.limits}
    prompt, token = floors.get("ttft_floor_ms", 0.0), floors.get("tpot_floor_ms", 0.0)
    if (target := targets.ttft_ms) is not None and prompt >= MOST_OF_TARGET * target:
        return (
            f"A prompt alone takes {prompt / 1e3:.3g} of the {target / 1e3:.3g} s that its first token may take: a server "
            "keeps that only while it idles most of the time, as whoever meets another's prompt is late. Faster prompts "
            "(more or faster devices for each server, a cached prefix) or a longer target save more than servers"
        )
    if (target := targets.tpot_ms or targets.itl_ms) is not None and token >= MOST_OF_TARGET * target:
        return (
            f"A token alone takes {token:.3g} of the {target:.3g} ms that it may take: a server keeps that only with few "
            "requests at once. More or faster devices for each server, smaller weights or a longer target save more than "
            "servers"
        )
    return ""


def _advice(
    verdict: Verdict, chosen: Proof | None, servers: Servers | None, prepared: Prepared | None, trials: Trials
) -> list[str]:
    """What else there is to say to whoever turns the knob, a sentence each."""
    advice = _of_the_turn(chosen, trials) if chosen is not None else []
    if chosen is None and trials.targets_given and not trials.seen.result.keeps_targets:
        advice.append(_kept_at_a_price(trials))
    if servers is not None and verdict.knob is not None:
        advice.append(servers.sentence())
    if prepared is not None and verdict.knob is None:
        advice.append(_multiplied_otherwise(prepared))
    advice.append(_more_copies(chosen, trials))
    if chosen is None or not trials.asked.carried(chosen.proposal.turned):
        advice.append(_first_seconds(trials))
    advice = [
        *filter(None, (*advice, trials.situation.behind_a_queue, trials.situation.given_up, verdict.advice))
    ]
    if prepared is not None and prepared.flashinfer and not advice:
        advice.append("Without FlashInfer installed it does not start: see the assumptions")
    return advice


def _more_copies(chosen: Proof | None, trials: Trials) -> str:
    """That copies on the same devices get through more once the server is full; empty where they do not."""
    found = [p for p in trials.proofs if p.proposal.knob == "tensor_parallel_size" and p is not chosen]
    turned = chosen is not None and chosen.proposal.knob == "tensor_parallel_size"
    now = trials.asked.full({}) if found and not turned else None
    rates = [(trials.asked.full(p.proposal.turned) or 0.0, p.proposal) for p in found] if now else []
    most, best = max(rates, key=lambda rate: rate[0], default=(0.0, None))
    if best is None or not now or most < MORE_FULL * now:
        return ""
    return (
        f"Once it is full, {best.set_text} on the same devices get through {most:.3g} requests/s instead of {now:.3g}, each "
        "request slower"
    )


def _first_seconds(trials: Trials) -> str:
    """What the figures of an overload are of: more requests wait longer with every second."""
    arrival = trials.rig.workload.shape.arrival
    if not trials.asked.overloaded or arrival.kind != "poisson":
        return ""
    return (
        f"The figures are of {arrival.requests / arrival.rate:.0f} s of arrivals; as the load stays, waiting grows with "
        "every second"
    )


def _multiplied_otherwise(prepared: Prepared) -> str:
    """That the device lacks the arithmetic of the weights' type; empty where it has it."""
    target = prepared.cost.target if isinstance(prepared.cost, SpeculativeCost) else prepared.cost
    (wanted, used), name = target.multiplied, prepared.hardware.name
    if wanted == used:
        return ""
    other = (
        " Weights and activations in INT8 it multiplies as they are"
        if "int8" in prepared.hardware.compute_tflops
        else ""
    )
    return (
        f"{name} does not multiply {wanted}: such weights save memory and reading, and prompts take as long as in {used} or "
        f"longer.{other}"
    ).removesuffix(".")


def _kept_at_a_price(trials: Trials) -> str:
    """The turn that alone keeps the targets and is held back, as it may change answers; empty where there is none."""
    found = next((p for p in trials.proofs if p.proposal.lossy and p.after.keeps_targets), None)
    if found is None:
        return ""
    share = f"{found.after.good_share:.1%} of the requests"
    return f"{found.proposal.set_text} alone keeps them ({share}); answers may change by it"


def _of_the_turn(chosen: Proof, trials: Trials) -> list[str]:
    """What a second knob adds, what the turn asks of the cache, and what it leaves undone."""
    turn, after = chosen.proposal, chosen.after
    price = _kept_at_a_price(trials) if after.targets.any and not after.keeps_targets else ""
    told = [ANSWERS if turn.lossy else "" if price else _lossy(chosen, trials)]
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
        told.append(price)
    if trials.asked.overloaded and (short := trials.asked.short_of(turn.turned)):
        told.append(short)
    return told


def _lossy(chosen: Proof, trials: Trials) -> str:
    """A turn that gains far more and may change answers; empty where none does."""
    best = max((p for p in trials.proofs if p.proposal.lossy), key=lambda proof: proof.gain, default=None)
    if best is None or best.gain < MORE_GAIN * chosen.gain:
        return ""
    shown, turn = best.telling or "output_tokens_per_s", best.proposal
    change = best.predicted[shown]
    moved = moved_text(shown, change.before, change.after)
    return f"{turn.knob} {turn.after} would do more, {moved}, and may change answers a little"

"""What a diagnosis is replayed on: the configuration on its device under a load, or step times fitted from the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from ...core.config import load_config
from ...core.errors import CamshaftError, EvidenceError
from ...core.workload import Workload, load_workload
from ..evidence import Evidence
from ..results import Targets
from ..simulate import Prepared, prepare
from ..simulate.steady import FEWEST, wanted_at
from .demand import FAR_ABOVE
from .fit import busy_token_s, fit
from .fitted_cost import acceptance_of_each
from .limits import hardware_limits
from .load import fitted_load
from .model import Limit
from .rig import Rig, SimulatedRig
from .situation import Situation, measured_kv_tokens
from .step_times import plain_and_drafted_ms
from .subject import Subject, placed

MOST_STEPS = 25_000  # of a replay of clients that wait for their answers, roughly
MOST_STEPS_AT_A_RATE = 40_000  # of one where requests arrive by themselves, and fewer run at once
FULL_GENERATIONS = 8  # requests for each that runs at once, where far more arrive than are done
FEWEST_OF_FULL = 48  # of them
MOST_REQUESTS, MOST_SESSIONS = 1200, 32  # of a replay, of which a diagnosis makes a dozen or more
FAILED_STARTS = ("kv_does_not_fit", "no_kv_memory", "out_of_memory", "free_memory_low")
MISSED_BY_ARITHMETIC = 0.1  # of the device: further off, what ran is not this configuration
SLOWER = 1.25  # times the predicted time of a token: beyond it the prediction misses something


def prepared_for(subject: Subject, evidence: Evidence, targets: Targets) -> Prepared | None:
    """The configuration on its device; None where model or device is not known.

    Raises ConfigError for a value that no knob takes, whatever is known.
    """
    values = dict(subject.given)
    drafts = values.get("speculative_config")
    rate = evidence.value("acceptance_rate")
    if isinstance(drafts, Mapping) and rate is not None and "acceptance" not in drafts:
        drafted = int(drafts.get("num_speculative_tokens") or 3)
        values["speculative_config"] = {**drafts, "acceptance": acceptance_of_each(rate, drafted)}
    if subject.shape is not None:
        values["model"] = subject.shape.name
    with placed(subject):
        loaded = load_config({"model": "unknown", **values}, purpose="inspect")
        if subject.hardware is None or subject.shape is None:
            return None
        found = prepare(loaded, subject.hardware, subject.shape, engine=subject.engine, targets=targets)
    holds = measured_kv_tokens(evidence)
    if holds:
        return found.holding(int(holds))
    doubtful = 0 < found.budget.missing_bytes <= MISSED_BY_ARITHMETIC * found.budget.total_bytes
    ran = evidence.ran and not any(evidence.event(code) for code in FAILED_STARTS)
    return found.started() if doubtful and ran and not found.budget.kv_given else found


def effective(prepared: Prepared | None, subject: Subject) -> dict[str, Any]:
    """Every knob's value, as far as it is known."""
    if prepared is None:
        return dict(subject.given)
    values = {name: entry.value for name, entry in prepared.values.items() if entry.value is not None}
    return {**prepared.foreign, **values}


def rig_for(
    situation: Situation, prepared: Prepared | None, workload: Workload | None
) -> tuple[Rig, list[Limit]]:
    """The cost model where model and device are known, step times fitted from the evidence otherwise; and the floors.

    Raises EvidenceError where a server was watched and nobody asked it anything, and no load is given.
    """
    if workload is None and situation.evidence.idle:
        raise EvidenceError(
            "no load is seen: nothing runs, waits or is computed; --workload or --rate names one"
        )
    if prepared is None or None not in plain_and_drafted_ms(situation):
        return fit(situation, workload), []
    chosen, notes = workload, ()
    if chosen is None and says_load(situation):
        load = fitted_load(situation)
        chosen, notes = load.workload, load.assumptions
    elif chosen is None:
        chosen, notes = (
            situation.evidence.recorded or load_workload("chat"),
            ("the load is the preset chat: none was given",),
        )
    chosen = _enough_of_full(_bounded(chosen, prepared), prepared)
    rig = SimulatedRig(prepared, chosen, assumptions=(*prepared.assumptions, *notes))
    return _as_slow_as_seen(rig, situation), hardware_limits(prepared, chosen)


def _as_slow_as_seen(rig: SimulatedRig, situation: Situation) -> SimulatedRig:
    """A host may be slower than the sheet's: what launches kernels in eager mode, and the processes before the engine."""
    for slower in (_slow_launches, _busy_frontend):
        found = slower(rig, situation)
        if found is not None:
            rig = _with_host(rig, *found)
    return rig


def _slow_launches(rig: SimulatedRig, situation: Situation) -> tuple[dict[str, float], str] | None:
    """Of a layer's kernels, by the observed step."""
    prepared = rig.prepared
    told = situation.figure("tpot_ms", "mean", "p50") or situation.figure("itl_ms", "p50", "mean")
    if prepared.value("enforce_eager") is not True or not told or situation.speculation:
        return None
    try:
        replayed = rig.play({}).result.tpot_ms
    except CamshaftError:
        return None
    if replayed is None or told < SLOWER * replayed.p50:
        return None
    each_us = told * 1e3 / prepared.shape.num_layers
    return {"eager_layer_launch_us": each_us}, (
        f"launching a layer's kernels takes {each_us:,.0f} us here: a token takes {told:g} ms and the device needs "
        f"{replayed.p50:.1f} ms for it"
    )


def _busy_frontend(rig: SimulatedRig, situation: Situation) -> tuple[dict[str, float], str] | None:
    """Of a streamed token, by the rate at which the HTTP process was seen to be busy throughout."""
    token_s = busy_token_s(situation, rig.workload.summary().output_tokens_mean)
    if token_s is None or token_s * 1e6 < SLOWER * rig.prepared.hardware.host.frontend_token_us:
        return None
    return {"frontend_token_us": token_s * 1e6, "frontend_request_us": 0.0}, (
        f"a streamed token takes {token_s * 1e6:,.0f} us of the HTTP process here, which is busy at the rate that was seen"
    )


def _with_host(rig: SimulatedRig, changes: dict[str, float], note: str) -> SimulatedRig:
    prepared = rig.prepared
    slow = prepare(
        prepared.loaded,
        structs.replace(prepared.hardware, host=structs.replace(prepared.hardware.host, **changes)),
        prepared.shape,
        engine=prepared.engine,
        targets=prepared.targets,
        unseen_bytes=prepared.unseen_bytes,
        flashinfer=prepared.flashinfer,
    )
    return SimulatedRig(slow, rig.workload, assumptions=(*rig.assumptions, note))


def says_load(situation: Situation) -> bool:
    """Whether anybody tells how many requests there are at once or a second, or how long each is."""
    seen = situation.evidence
    return bool(seen.load or seen.lengths or situation.concurrency or situation.rate_per_s)


def _bounded(workload: Workload, prepared: Prepared) -> Workload:
    """The load as `simulate` plays it, whole but for what would take minutes.

    A rate lasts long enough to tell whether work piles up, and of a long trace its busiest stretch is played.
    """
    arrival = workload.shape.arrival
    if arrival.kind == "sessions":
        return workload.first(min(arrival.sessions, max(MOST_SESSIONS, 2 * (workload.concurrency or 0))))
    most = max(MOST_REQUESTS, 2 * (workload.concurrency or 0))
    if workload.concurrency is not None:
        return workload.first(min(workload.count, most, _clients_within_steps(workload, prepared)))
    most = min(most, _arrivals_within_steps(workload, prepared))
    if arrival.kind == "trace" and workload.count > most:
        return workload.busiest(most)
    wanted = workload.count
    if arrival.kind == "poisson" and arrival.burstiness == 1:
        wanted = max(wanted, wanted_at(arrival.rate))
    return workload.first(min(wanted, most))


def _clients_within_steps(workload: Workload, prepared: Prepared) -> int:
    """Requests of a closed loop that take so many steps: two for each that runs at once, or more."""
    together = _together(workload, prepared, workload.concurrency or 1)
    return max(2 * together, int(MOST_STEPS / _steps_each(workload, prepared, together)))


def _arrivals_within_steps(workload: Workload, prepared: Prepared) -> int:
    """Requests that arrive by themselves and take so many steps, and enough of them to tell a share of good ones."""
    told = workload.summary()
    alone_s = prepared.fastest_token_ms(told.input_tokens_mean) * told.output_tokens_mean / 1e3
    together = _together(workload, prepared, (told.rate or 1.0) * alone_s)
    return max(FEWEST, int(MOST_STEPS_AT_A_RATE / _steps_each(workload, prepared, together)))


def _enough_of_full(workload: Workload, prepared: Prepared) -> Workload:
    """The load itself; only as much as keeps a server full, where far more arrives than that gets through."""
    arrival = workload.shape.arrival
    if arrival.kind != "poisson":
        return workload
    fewer = max(FEWEST_OF_FULL, FULL_GENERATIONS * _together(workload, prepared, workload.count))
    if fewer >= workload.count:
        return workload
    try:
        full = SimulatedRig(prepared, workload).steady({}).capacity_per_s
    except CamshaftError:
        return workload
    return workload.first(fewer) if full and arrival.rate > FAR_ABOVE * full else workload


def _together(workload: Workload, prepared: Prepared, wanted: float) -> int:
    """How many run at once of so many that could, by the slots and the cache."""
    told = workload.summary()
    held = prepared.budget.sequences(told.input_tokens_mean + told.output_tokens_mean)
    return max(1, int(min(wanted, prepared.params.max_num_seqs, held)))


def _steps_each(workload: Workload, prepared: Prepared, together: int) -> float:
    """A request's part of the steps, where so many run at once."""
    told = workload.summary()
    prompt = told.input_tokens_mean / prepared.params.max_num_batched_tokens
    return told.output_tokens_mean / together + prompt

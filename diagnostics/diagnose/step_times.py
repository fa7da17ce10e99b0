"""Step times from the evidence: what a decode step, a prompt token, a draft and a launch take, as far as they were seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.schedule.scheduler import SchedulerParams
from .fitted_cost import FittedCost, acceptance_of_each
from .situation import Situation

ASSUMED_STEP_MS = 30.0
TOKENS_FOR_A_STEP = (
    300.0  # prompt tokens whose arithmetic takes as long as reading the weights once (order of it)
)
SEQUENCE_SHARE = 0.004  # of a lone sequence's step, for each further one: its cache and its row
EAGER_SHARE = 0.5  # of a lone step without graphs, at least what launches cost where no floor is known
ASSUMED_ACCEPTANCE = 0.5  # of drafted tokens, where only the speeds with and without them are told


@dataclass(slots=True)
class Notes:
    """What was assumed, and whether step times rest on any figure at all, and the cache's size."""

    lines: list[str]
    measured: bool = False
    sized: bool = True


def fitted_cost(situation: Situation, params: SchedulerParams, inputs: float, notes: Notes) -> FittedCost:
    """The step times that the figures tell; what they do not is assumed, and noted."""
    batch = min(situation.running or situation.concurrency or 1, params.max_num_seqs)
    step = _step_ms(situation, batch)
    notes.measured = step is not None
    step = step or ASSUMED_STEP_MS
    base = step / (1 + SEQUENCE_SHARE * batch)
    slope = _swept_slope(situation)
    if slope is not None:
        notes.measured = True
        base, per_sequence = slope
    else:
        per_sequence = base * SEQUENCE_SHARE
        notes.lines.append(f"each further sequence adds {SEQUENCE_SHARE:.1%} to a step")
    prefill = _prefill_token_ms(situation, params, inputs)
    if prefill is None:
        prefill = base / TOKENS_FOR_A_STEP
        peak = situation.figure("prompt_tokens_per_s", "max", "mean")
        if peak and 1e3 / peak < prefill:  # what was seen is a lower bound of the speed
            prefill = 1e3 / peak
        else:
            notes.lines.append(f"a prompt token costs 1/{TOKENS_FOR_A_STEP:g} of a lone decode step")
    else:
        notes.measured = True
    cost = FittedCost(base_ms=base, sequence_ms=per_sequence, prefill_token_ms=prefill)
    cost = _without_graphs(situation, cost, step, batch, notes)
    return _speculative(situation, cost, step, notes)


def _step_ms(situation: Situation, batch: float) -> float | None:
    """The time of a decode step at the observed batch, with no prompt beside it where such stand out."""
    if situation.spiky_gaps is not None:
        return situation.spiky_gaps[1]
    for name in ("step_ms", "tpot_ms", "itl_ms"):
        told = situation.figure(name, "mean", "p50")
        if told:
            return told
    alone = situation.figure("request_output_tokens_per_s")
    if alone:
        return 1e3 / alone
    together = situation.figure("output_tokens_per_s", "max", "mean")
    return 1e3 * batch / together if together else None


def _swept_slope(situation: Situation) -> tuple[float, float] | None:
    """Base and slope over the load levels at which the cache still had room."""
    rows = [
        row
        for row in situation.evidence.sweep
        if row.get("tpot_ms") and row.get("running") and row.get("kv_usage", 0.0) < 0.95
    ]
    limit = situation.graph_limit
    rows = [row for row in rows if not limit or row["running"] <= limit]  # a step without a graph is another
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    spread = last["running"] - first["running"]
    if spread <= 0:
        return None
    slope = max(0.0, (last["tpot_ms"] - first["tpot_ms"]) / spread)
    return max(1e-3, first["tpot_ms"] - slope * first["running"]), slope


def _prefill_token_ms(situation: Situation, params: SchedulerParams, inputs: float) -> float | None:
    """The time of a prompt token: from a stall that one prompt causes, a first token without others, or a gap."""
    if situation.stalled_ttft is not None and (situation.input_tokens or 0) > params.max_num_batched_tokens:
        late = situation.stalled_ttft[0].value or 0.0
        return late / (situation.input_tokens or 1)
    alone = situation.evidence.find("ttft_ms", None, "alone")
    if alone is not None and alone.value and inputs:
        return alone.value / inputs
    if situation.spiky_gaps is not None and inputs:
        gap, usual = situation.spiky_gaps
        return (gap - usual) / min(inputs, params.max_num_batched_tokens)
    return None


def _speculative(situation: Situation, cost: FittedCost, step_ms: float, notes: Notes) -> FittedCost:
    """Splits a step with drafts into verifying and drafting, where both speeds were seen."""
    told = situation.speculation
    rate = situation.acceptance
    plain, with_drafts = plain_and_drafted_ms(situation)
    if told is None or (rate is None and None in (plain, with_drafts)):
        return cost
    drafted = int(told.get("num_speculative_tokens") or 3)
    if rate is None:
        rate = ASSUMED_ACCEPTANCE
        notes.lines.append(f"{rate:.0%} of the drafts are accepted")
    each = acceptance_of_each(rate, drafted)
    gained = rate * drafted + 1
    with_drafts = with_drafts or step_ms
    whole = with_drafts * gained
    if plain is None:
        plain = whole / (1 + 0.1 * drafted)
        notes.lines.append("a draft costs a tenth of the model's own step")
    notes.measured = True
    draft = max(0.0, (whole - plain) / drafted)
    return replace(cost, base_ms=plain, sequence_ms=0.0, drafted=drafted, draft_ms=draft, acceptance=each)


def _without_graphs(
    situation: Situation, cost: FittedCost, step_ms: float, batch: float, notes: Notes
) -> FittedCost:
    """What a batch beyond the captured sizes costs more: by load levels or lines on both sides of the largest."""
    limit = situation.graph_limit
    if not limit or not situation.missed_graphs:
        return cost
    inside, beyond = _paces(situation, limit)
    if inside and beyond:
        share = 1 + SEQUENCE_SHARE * limit
        base = cost.base_ms if _swept_slope(situation) else min(inside) / share
        each = cost.sequence_ms if _swept_slope(situation) else base * SEQUENCE_SHARE
        usual = base + each * batch
        return replace(
            cost, base_ms=base, sequence_ms=each, graph_limit=limit, missed_ms=max(0.0, max(beyond) - usual)
        )
    notes.lines.append(
        f"a step beyond the largest graph ({limit}) is taken to launch for {EAGER_SHARE:.0%} of it"
    )
    kept = 1 - EAGER_SHARE
    return replace(
        cost,
        base_ms=cost.base_ms * kept,
        sequence_ms=cost.sequence_ms * kept,
        graph_limit=limit,
        missed_ms=step_ms * EAGER_SHARE,
    )


def _paces(situation: Situation, limit: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a decode step that were seen with a graph and beyond the largest one."""
    inside: list[float] = []
    beyond: list[float] = []
    for row in situation.evidence.sweep:
        if row.get("tpot_ms") and row.get("running"):
            (inside if row["running"] <= limit else beyond).append(row["tpot_ms"])
    for sample in situation.evidence.samples:
        running, rate, graph = (sample.get(name) for name in ("running", "output_tokens_per_s", "graphs"))
        if running and rate and graph is not None:
            (inside if graph else beyond).append(1e3 * running / rate)
    return inside, beyond


def plain_and_drafted_ms(situation: Situation) -> tuple[float | None, float | None]:
    """Time per token without and with drafts, where both were measured."""
    plain = drafted = None
    for figure in situation.evidence.figures:
        if figure.name in ("tpot_ms", "itl_ms") and figure.value:
            if "without" in figure.qualifier or "off" in figure.qualifier or "baseline" in figure.qualifier:
                plain = figure.value
            elif "with" in figure.qualifier or figure.qualifier in ("on", "spec", "speculative"):
                drafted = figure.value
    return plain, drafted


def without_launches(situation: Situation, cost: FittedCost, notes: Notes) -> FittedCost | None:
    """Steps replayed from graphs: no faster than reading every byte that the device could hold as weights."""
    if not situation.value("enforce_eager"):
        return None
    hardware = situation.subject.hardware
    if hardware is not None:
        floor = card_read_ms(situation)
        if floor is not None and floor < cost.base_ms:
            notes.lines.append(
                f"with graphs a step is no faster than reading all of {hardware.name}'s memory once "
                f"({floor:.0f} ms); smaller weights gain more"
            )
            return replace(cost, base_ms=floor, launch_ms=0.0)
    notes.lines.append(f"launching kernels one by one is taken to cost {EAGER_SHARE:.0%} of a lone step")
    return replace(cost, base_ms=cost.base_ms * (1 - EAGER_SHARE))


def card_read_ms(situation: Situation) -> float | None:
    """The longest that weights which fit the device can take to be read."""
    hardware = situation.subject.hardware
    if hardware is None:
        return None
    usable = hardware.memory_bytes * situation.utilization
    return usable / (hardware.memory_bandwidth_gb_s * 1e9) * 1e3

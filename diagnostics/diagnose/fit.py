"""From observed figures to step times and a cache size that give these figures when the queue is replayed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ...core.errors import CamshaftError
from ...core.schedule.scheduler import SchedulerParams
from ...core.workload import Workload
from ..simulate import Frontend
from .fitted_cost import FittedCost, acceptance_of_each
from .load import fitted_load
from .rig import FittedRig
from .situation import Situation, preemption_marks

ASSUMED_STEP_MS = 30.0
TOKENS_FOR_A_STEP = (
    300.0  # prompt tokens whose arithmetic takes as long as reading the weights once (order of it)
)
SEQUENCE_SHARE = 0.004  # of a lone sequence's step, for each further one: its cache and its row
EAGER_SHARE = (
    0.5  # of a lone sequence's step without graphs, at least what launches cost where no floor is known
)
ASSUMED_ACCEPTANCE = 0.5  # of drafted tokens, where only the speeds with and without them are told
ROUNDS = 4


@dataclass(slots=True)
class _Notes:
    """What was assumed, and whether step times rest on any figure at all, and the cache's size."""

    lines: list[str]
    measured: bool = False
    sized: bool = True


def fit(situation: Situation, workload: Workload | None = None) -> FittedRig:
    """A rig whose replay resembles what was observed. What could not be known is among its assumptions."""
    load = fitted_load(situation, workload)
    notes = _Notes(list(load.assumptions))
    summary = load.workload.summary()
    params = _params(situation, load.workload, notes)
    cost = _cost(situation, params, summary.input_tokens_mean, notes)
    rig = FittedRig(
        params=params,
        cost=cost,
        workload=load.workload,
        targets=situation.targets,
        policy="continuous" if params.enable_chunked_prefill is False else "continuous-chunked",
        utilization=float(situation.value("gpu_memory_utilization") or 0.9),
        kv_share=_kv_share(situation, notes),
        chunk_tokens=int(situation.value("max_num_batched_tokens")),
        frontend=_frontend(situation, summary.output_tokens_mean),
        eager_cost=_without_launches(situation, cost, notes),
    )
    rig = _calibrated(rig, situation)
    if not notes.measured:
        notes.lines.append(
            f"no step time was observed: {ASSUMED_STEP_MS:g} ms a step is assumed; only ratios mean anything"
        )
    rig.assumptions = tuple(notes.lines)
    rig.band_percent = 30.0 if notes.measured else 50.0
    return rig


def _params(situation: Situation, workload: Workload, notes: _Notes) -> SchedulerParams:
    """The scheduler's limits; an unknown cache holds all that may run at once."""
    value = situation.value
    summary = workload.summary()
    longest = summary.input_tokens_max + summary.output_tokens_max + 1
    slots = int(value("max_num_seqs"))
    tokens = situation.kv_tokens or _from_usage(
        situation, summary.input_tokens_mean, summary.output_tokens_mean
    )
    if tokens is None:
        tokens = 4.0 * max(slots, situation.concurrency or 1) * longest
        notes.sized = False
        notes.lines.append("the size of the KV cache is not known; it is taken to be no limit")
    tokens = _room(situation, tokens, longest)
    chunked = value("enable_chunked_prefill")
    budget = int(value("max_num_batched_tokens"))
    if chunked is False:
        budget = max(budget, longest)
    if not situation.given("max_num_batched_tokens"):
        notes.lines.append(f"max_num_batched_tokens {budget:,} (the default)")
    if not situation.given("max_num_seqs"):
        notes.lines.append(f"max_num_seqs {slots:,} (the default)")
    reserve = value("scheduler_reserve_full_isl")
    if reserve is None:
        reserve = _reserves(situation)
    return SchedulerParams(
        num_blocks=max(int(tokens // 16), -(-longest // 16) + 1),
        block_size=16,
        max_model_len=longest,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        enable_prefix_caching=bool(value("enable_prefix_caching")) and bool(situation.shares_prefix),
        enable_chunked_prefill=None if chunked is None else bool(chunked),
        long_prefill_token_threshold=int(value("long_prefill_token_threshold") or 0),
        reserve_full_prompt=bool(reserve),
        watermark=0.0,
    )


def _room(situation: Situation, tokens: float, longest: int) -> float:
    """The cache's tokens, and no fewer than what was seen to run with nobody waiting and nothing evicted."""
    calm = situation.waiting == 0 and not situation.preempting and not situation.evidence.sweep
    return max(tokens, (situation.running or 1) * longest) if calm else tokens


def _reserves(situation: Situation) -> bool:
    """Whether a prompt starts only when all of it fits: vLLM from 0.19.0 on, and no release that is seen to evict."""
    engine = situation.subject.engine
    if engine.version is None and preemption_marks(situation):
        return False
    return engine.release >= (0, 19)


def _from_usage(situation: Situation, inputs: float, outputs: float) -> float | None:
    """Tokens of the cache from how full the running requests make it, at the load's lengths."""
    usage, running = situation.figure("kv_usage"), situation.running
    if not usage or not running or usage < 0.05:
        return None
    return running * (inputs + outputs / 2) / usage


def _kv_share(situation: Situation, notes: _Notes) -> float:
    """Of the usable memory, the part that is cache."""
    gib = situation.evidence.setting("kv_gib") or situation.figure("kv_memory_gib")
    device = situation.subject.hardware or situation.subject.device
    if gib and device is not None:
        usable = device.memory_gib * float(situation.value("gpu_memory_utilization") or 0.9)
        return min(0.95, max(0.02, float(gib) / usable))
    if notes.sized:
        notes.lines.append("the cache is taken to have 40 % of the usable memory")
    return 0.4


def _cost(situation: Situation, params: SchedulerParams, inputs: float, notes: _Notes) -> FittedCost:
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


def _speculative(situation: Situation, cost: FittedCost, step_ms: float, notes: _Notes) -> FittedCost:
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
    situation: Situation, cost: FittedCost, step_ms: float, batch: float, notes: _Notes
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


def _without_launches(situation: Situation, cost: FittedCost, notes: _Notes) -> FittedCost | None:
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
    usable = hardware.memory_bytes * float(situation.value("gpu_memory_utilization") or 0.9)
    return usable / (hardware.memory_bandwidth_gb_s * 1e9) * 1e3


def _frontend(situation: Situation, outputs: float) -> Frontend:
    """HTTP processes as busy as was seen; cheap where nobody looked."""
    cpu, rate = situation.figure("host_cpu"), situation.rate_per_s
    processes = float(situation.value("api_server_count") or 1)
    if cpu and rate and cpu >= 0.9:
        return Frontend(0.0, 0.0, 1.02 * cpu / (rate * max(1.0, outputs)), processes)
    return Frontend(processes=processes)


def _calibrated(rig: FittedRig, situation: Situation) -> FittedRig:
    """Scales decode and prefill times until throughput and first token come out as observed."""
    if situation.stalled_ttft or situation.speculation or situation.evidence.sweep:
        return rig
    throughput = situation.figure("output_tokens_per_s", "mean", "")
    ttft = situation.figure("ttft_ms", "p50", "mean")
    if throughput is None or situation.rate_per_s or not situation.concurrency:
        return rig
    told = any(situation.figure(name) for name in ("tpot_ms", "itl_ms", "request_output_tokens_per_s"))
    best, best_error = rig, float("inf")
    for _ in range(ROUNDS):
        try:
            result = rig.play({}).result
        except CamshaftError:
            break
        off = throughput / max(result.throughput_output_tokens_per_s, 1e-9)
        late = ttft / max(result.ttft_ms.p50, 1e-9) if ttft and result.ttft_ms else 1.0
        if _queues(rig):
            late = 1.0  # a first token that waits for a slot or for blocks tells nothing of prefill
        error = abs(_log(off)) + abs(_log(late))
        if error < best_error:
            best, best_error = rig, error
        if error < 0.1:
            break
        changes: dict[str, Any] = {"prefill_token_ms": rig.cost.prefill_token_ms * _bounded(late)}
        if not told:
            changes["base_ms"] = rig.cost.base_ms * _bounded(1 / off)
            changes["sequence_ms"] = rig.cost.sequence_ms * _bounded(1 / off)
        cost = replace(rig.cost, **changes)
        rig = replace(rig, cost=cost, eager_cost=None) if rig.eager_cost is None else rig
        if rig.eager_cost is not None:
            break
    return best


def _queues(rig: FittedRig) -> bool:
    """Whether requests of the replay as it is mostly wait for a slot or for blocks."""
    log = rig.play({}).log
    held = log.blocked.get("no_slot", 0.0) + log.blocked.get("no_blocks", 0.0)
    return held > 0.3 * float(log.column("end_s").max(initial=1e-9))


def _bounded(factor: float) -> float:
    return min(3.0, max(1 / 3, factor))


def _log(value: float) -> float:
    return math.log(max(value, 1e-9))

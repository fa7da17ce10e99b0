"""From observed figures to step times and a cache size that give these figures when the queue is replayed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...core.errors import CamshaftError
from ...core.schedule.scheduler import SchedulerParams
from ...core.workload import Workload
from ..simulate import Frontend
from .load import fitted_load
from .rig import FittedRig
from .situation import Situation, preemption_marks
from .step_times import ASSUMED_STEP_MS, Notes, fitted_cost, without_launches

ROUNDS = 4


def fit(situation: Situation, workload: Workload | None = None) -> FittedRig:
    """A rig whose replay resembles what was observed. What could not be known is among its assumptions."""
    load = fitted_load(situation, workload)
    notes = Notes(list(load.assumptions))
    summary = load.workload.summary()
    params = _params(situation, load.workload, notes)
    cost = fitted_cost(situation, params, summary.input_tokens_mean, notes)
    rig = FittedRig(
        params=params,
        cost=cost,
        workload=load.workload,
        targets=situation.targets,
        policy="continuous" if params.enable_chunked_prefill is False else "continuous-chunked",
        utilization=situation.utilization,
        kv_share=_kv_share(situation, notes),
        chunk_tokens=int(situation.value("max_num_batched_tokens")),
        frontend=_frontend(situation, summary.output_tokens_mean),
        eager_cost=without_launches(situation, cost, notes),
    )
    rig = _calibrated(rig, situation)
    if not notes.measured:
        notes.lines.append(
            f"no step time was observed: {ASSUMED_STEP_MS:g} ms a step is assumed; only ratios mean anything"
        )
    rig.assumptions = tuple(notes.lines)
    rig.fitted_percent = 30.0 if notes.measured else 50.0
    return rig


def _params(situation: Situation, workload: Workload, notes: Notes) -> SchedulerParams:
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
    shares = bool(situation.shares_prefix or situation.reused_share)
    reserve = value("scheduler_reserve_full_isl")
    if reserve is None:
        reserve = _reserves(situation)
    return SchedulerParams(
        num_blocks=max(int(tokens // 16), -(-longest // 16) + 1),
        block_size=16,
        max_model_len=longest,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        enable_prefix_caching=bool(value("enable_prefix_caching")) and shares,
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


def _kv_share(situation: Situation, notes: Notes) -> float:
    """Of the usable memory, the part that is cache."""
    gib = situation.evidence.setting("kv_gib") or situation.figure("kv_memory_gib")
    device = situation.subject.hardware or situation.subject.device
    if gib and device is not None:
        usable = device.memory_gib * situation.utilization
        return min(0.95, max(0.02, float(gib) / usable))
    if notes.sized:
        notes.lines.append("the cache is taken to have 40 % of the usable memory")
    return 0.4


def _frontend(situation: Situation, outputs: float) -> Frontend:
    """HTTP processes as busy as was seen; cheap where nobody looked."""
    processes = float(situation.value("api_server_count") or 1)
    token_s = busy_token_s(situation, outputs)
    return Frontend(processes=processes) if token_s is None else Frontend(0.0, 0.0, token_s, processes)


def busy_token_s(situation: Situation, outputs: float) -> float | None:
    """What a streamed token costs an HTTP process that is seen to be busy throughout; None where none is."""
    cpu, rate = situation.figure("host_cpu"), situation.rate_per_s
    if not cpu or not rate or cpu < 0.9:
        return None
    return 1.02 * cpu / (rate * max(1.0, outputs))


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

"""What the host spends on a step in steady decode: scheduler and bookkeeping, with nothing computed."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import numpy as np

from ...core.config import Hardware, load_config, resolve
from ...core.engine import Engine
from ...core.errors import ConfigError
from ...core.execute.base import Capacity
from ...core.request import Request, SamplingParams
from ...core.schedule.plan import StepPlan, StepResult

BUDGET_US = {256: 60.0, 1024: 150.0}  # what a step may cost at so many running requests, default policy
EXTRA_US = 150.0  # what another policy may add
DEFAULT = "continuous-chunked"
_CPU = Hardware(kind="cpu", name="none", memory_bytes=1 << 40)


class NullExecutor:
    """Answers every step at once with the same token."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity

    def open(self) -> Capacity:
        return self.capacity

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        rows = handle.rows[handle.samples]
        return StepResult(handle.step, rows, np.full(len(rows), 5, dtype=np.int32), 1.0)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds a step at so many running requests; `engine_us` is all that `Engine.step` takes."""

    running: int
    policy: str
    steps: int
    engine_us: float  # median
    engine_p99_us: float
    schedule_us: float
    update_us: float
    budget_us: float | None


def measure(running: int, policy: str = DEFAULT, steps: int = 400) -> Overhead:
    """Medians over `steps` steps of steady decode; the best of three rounds, since the machine is shared."""
    engine = _steady_engine(running, policy, steps)
    rounds = [_round(engine, max(steps // 3, 1)) for _ in range(3)]
    engine.close()
    best = min(rounds, key=lambda r: float(np.median(r[0])))
    whole, schedule, update = (np.asarray(part) / 1e3 for part in best)
    return Overhead(
        running,
        policy,
        steps,
        float(np.median(whole)),
        float(np.percentile(whole, 99)),
        float(np.median(schedule)),
        float(np.median(update)),
        _budget_us(running, policy),
    )


def _budget_us(running: int, policy: str) -> float | None:
    limit = BUDGET_US.get(running)
    return limit if limit is None or policy == DEFAULT else limit + EXTRA_US


def _steady_engine(running: int, policy: str, steps: int) -> Engine:
    """An engine with `running` requests that all decode and will not end."""
    tokens = 64 + 4 * steps
    per_request = -(-tokens // 16) + 1
    config = {
        "model": "none",
        "policy": policy,
        "max_num_seqs": running,
        "max_num_batched_tokens": max(8192, running),
        "max_model_len": 4096 if tokens < 4096 else tokens,
        "enable_prefix_caching": True,
    }
    resolved = resolve(load_config(config), _CPU)
    capacity = Capacity(
        num_blocks=per_request * running + 64,
        block_size=16,
        max_model_len=config["max_model_len"],
        max_num_seqs=running,
        vocab_size=32000,
    )
    engine = Engine(resolved.config, NullExecutor(capacity), resolved.policy)
    engine.open()
    rng = np.random.default_rng(0)
    for number in range(running):
        prompt = rng.integers(10, 30000, size=int(rng.integers(16, 64)), dtype=np.int32)
        params = SamplingParams(max_tokens=tokens - 64, temperature=0.0, ignore_eos=True)
        engine.add(
            Request(f"r{number}", prompt, params, engine.clock(), handle=number, tenant=f"t{number % 4}")
        )
    for _ in range(running + 100):
        if len(engine.scheduler.running) == running and not engine.scheduler.running.prefilling:
            break
        engine.step()
    else:
        raise ConfigError(f"policy {policy} does not run {running} requests at once")
    for _ in range(20):
        engine.step()
    return engine


def _round(engine: Engine, steps: int) -> tuple[list[int], list[int], list[int]]:
    """Nanoseconds of each step: whole, in the scheduler's `schedule`, in its `update`."""
    scheduler, clock = engine.scheduler, time.perf_counter_ns
    plan_step, update_step = scheduler.schedule, scheduler.update
    whole: list[int] = []
    schedule: list[int] = []
    update: list[int] = []

    gc.collect()
    gc.disable()
    try:
        for _ in range(steps):
            start = clock()
            engine.step()
            whole.append(clock() - start)
        for _ in range(steps // 4):
            start = clock()
            plan = plan_step(engine.clock())
            middle = clock()
            assert plan is not None  # steady decode
            result = engine._executor.collect(engine._executor.launch(plan))
            launched = clock()
            update_step(result, engine.clock())
            update.append(clock() - launched)
            schedule.append(middle - start)
    finally:
        gc.enable()
    return whole, schedule, update

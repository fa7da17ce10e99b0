"""An engine whose steps take stated times on a clock of its own, and compute nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft.core.config import Hardware, load_config, resolve
from camshaft.core.engine import Engine
from camshaft.core.execute.base import Capacity
from camshaft.core.schedule.plan import StepPlan, StepResult

CPU = Hardware(kind="cpu", name="cpu", memory_bytes=1 << 34)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


class TimedExecutor:
    """A step takes 10 ms and 0.1 ms for each token of a prompt chunk; tokens are drawn from their place."""

    def __init__(self, clock: Clock, num_blocks: int, max_num_seqs: int) -> None:
        self.clock, self.num_blocks, self.max_num_seqs = clock, num_blocks, max_num_seqs
        self.prompts: dict[str, np.ndarray] = {}
        self.plans: list[StepPlan] = []

    def open(self) -> Capacity:
        return Capacity(self.num_blocks, 16, 2048, self.max_num_seqs, 1000)

    def launch(self, plan: StepPlan) -> StepPlan:
        self.plans.append(plan)
        for added in plan.added:
            self.prompts[added.request_id] = added.tokens.copy()
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        duration_ms = 10 + 0.1 * (handle.total_tokens - handle.num_decodes)
        self.clock.now_s += duration_ms / 1e3
        rows = handle.rows[handle.samples]
        tokens = 300 + (handle.starts[handle.samples] + handle.num_tokens[handle.samples]) % 100
        return StepResult(handle.step, rows, tokens.astype(np.int32), duration_ms)

    def close(self) -> None:
        pass


class Bench:
    """Makes engines with a clock that can be read."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.executors: list[TimedExecutor] = []
        self.engines: list[Engine] = []

    def engine(self, num_blocks: int = 4096, **keys: Any) -> Engine:
        config = {
            "model": "none",
            "max_model_len": 2048,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 256,
            **keys,
        }
        if keys.get("policy") in ("naive", "static", "continuous"):
            config["max_num_batched_tokens"] = 2048
        if keys.get("policy") == "naive":
            config["max_num_seqs"] = 1
        resolved = resolve(load_config(config), CPU)
        executor = TimedExecutor(self.clock, num_blocks, int(config["max_num_seqs"]))
        self.executors.append(executor)
        self.engines.append(Engine(resolved.config, executor, resolved.policy, clock=self.clock))
        return self.engines[-1]


@pytest.fixture
def bench() -> Bench:
    return Bench()

"""A small load really served through the engine: the host's time between steps, and how well steps are predicted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.config import ServeConfig
from ...core.engine import Engine
from ...core.execute.base import Capacity, Executor
from ...core.schedule.plan import StepPlan, StepResult
from ...core.workload import Workload, load_workload
from ...policies.registry import PolicyFile
from ..bench.offline import drive
from .neighbours import QUIET_SHARE, Neighbours
from .step import StepCost

REQUESTS, AT_ONCE = 16, 8
PROMPT_TOKENS, ANSWER_TOKENS = 200, 64  # at most
TRIES = 3
QUANTILES = 50  # of the scatter of a step
WINDOWS = 6  # of consecutive steps
FEWEST = 3  # steps of a kind in each


@dataclass(frozen=True, slots=True)
class ServedStep:
    """A step's composition, as `StepCost.step` takes it, and when it ran."""

    decode_contexts: np.ndarray
    chunk_tokens: np.ndarray
    chunk_starts: np.ndarray
    samples: int
    padding: int
    launched_s: float
    collected_s: float

    @property
    def ms(self) -> float:
        return (self.collected_s - self.launched_s) * 1e3

    def predicted_ms(self, cost: StepCost) -> float:
        """Without the host's share, which lies between steps."""
        told = cost.step(
            self.decode_contexts, self.chunk_tokens, self.chunk_starts, self.samples, self.padding
        )
        return told.total - told.host


@dataclass(slots=True)
class Watched:
    """An executor already open, whose steps are remembered. `close` leaves it open."""

    inner: Executor
    capacity: Capacity
    steps: list[ServedStep] = field(default_factory=list)
    _launched_s: float = 0.0

    def open(self) -> Capacity:
        return self.capacity

    def launch(self, plan: StepPlan) -> tuple[StepPlan, Any]:
        self._launched_s = time.perf_counter()
        return plan, self.inner.launch(plan)

    def collect(self, handle: tuple[StepPlan, Any]) -> StepResult:
        plan, inner = handle
        result, n = self.inner.collect(inner), plan.num_decodes
        self.steps.append(
            ServedStep(
                plan.starts[:n] + 1,
                plan.num_tokens[n:],
                plan.starts[n:],
                int(plan.samples.sum()),
                plan.padding,
                self._launched_s,
                time.perf_counter(),
            )
        )
        return result

    def close(self) -> None:
        pass


def small_load(capacity: Capacity) -> Workload:
    """Requests of lengths that the executor holds, several at a time."""
    held = min(capacity.max_model_len - 1, capacity.num_blocks * capacity.block_size // AT_ONCE)
    prompt = max(2, min(PROMPT_TOKENS, held * 3 // 4))
    answer = max(2, min(ANSWER_TOKENS, held - prompt))
    return load_workload(
        {
            "arrival": {
                "kind": "closed",
                "concurrency": min(AT_ONCE, capacity.max_num_seqs),
                "requests": REQUESTS,
            },
            "input_tokens": {"uniform": [prompt // 8 + 1, prompt]},
            "output_tokens": {"uniform": [answer // 2, answer]},
        }
    )


def trial(
    executor: Executor, capacity: Capacity, config: ServeConfig, policy: PolicyFile
) -> list[ServedStep]:
    """Serves the small load on an executor that is open, and stays so; its steps in order.

    Repeats while other processes take cores, up to TRIES times, and keeps the least disturbed run.
    """
    best: tuple[float, list[ServedStep]] = (np.inf, [])
    for _ in range(TRIES):
        neighbours, watched = Neighbours(), Watched(executor, capacity)
        engine = Engine(config, watched, policy)
        engine.open()
        neighbours.share()
        drive(engine, small_load(capacity))
        best = min(best, (neighbours.share() or 0.0, watched.steps), key=lambda found: found[0])
        if best[0] <= QUIET_SHARE:
            break
    return best[1]


def host_us(steps: Sequence[ServedStep]) -> float:
    """Median microseconds between the end of a step and the launch of the next one."""
    gaps = [after.launched_s - step.collected_s for step, after in itertools.pairwise(steps)]
    return 1e6 * float(np.median(gaps)) if gaps else 0.0


def ratios(steps: Sequence[ServedStep], cost: StepCost) -> tuple[np.ndarray, np.ndarray]:
    """Served over predicted time of each step of decodes alone, and of each step with chunks."""
    decodes = [step.ms / step.predicted_ms(cost) for step in steps if not len(step.chunk_tokens)]
    chunks = [step.ms / step.predicted_ms(cost) for step in steps if len(step.chunk_tokens)]
    return np.array(decodes), np.array(chunks)


def jitter(decodes: np.ndarray, chunks: np.ndarray) -> dict[str, Any] | None:
    """How served steps scatter around what was predicted, at evenly spaced quantiles; None with too few steps.

    Steps in order. They are cut into WINDOWS, each of which scatters around its own median; each quantile is
    the median over the windows. So level comes from the steps that were timed one by one, and a moment in
    which the machine was slow does not pass for the scatter of every run.
    """
    if min(len(decodes), len(chunks)) < WINDOWS * FEWEST:
        return None
    return {
        "decode": _quantiles(decodes),
        "prefill": _quantiles(chunks),
        "source": f"{len(decodes)} steps of decodes and {len(chunks)} with chunks, served in small loads",
    }


def _quantiles(ratios: np.ndarray) -> list[float]:
    at = (np.arange(QUANTILES) + 0.5) / QUANTILES
    windows = [np.quantile(part / np.median(part), at) for part in np.array_split(ratios, WINDOWS)]
    return [round(float(q), 4) for q in np.median(windows, axis=0)]

"""The virtual executor: takes the scheduler's plans and says how long they would have taken."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...core.execute.base import Capacity
from ...core.schedule.plan import StepPlan, StepResult
from ...core.workload import Segment, WorkloadRequest, segment_tokens
from ..cost.hardware import Jitter
from ..cost.step import StepTime, StepTimer

FILLER = 300  # a token id that means nothing; used where nobody shares what was generated


@dataclass(slots=True)
class VirtualClock:
    """A clock that moves only when told; calling it gives seconds."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class Scatter:
    """Draws how far a step is from its median, by the machine's measured quantiles; the same seed, the same draws."""

    jitter: Jitter
    seed: int = 0
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def factor(self, prefill: bool) -> float:
        """Of the median time of the next step."""
        values = self.jitter.prefill if prefill else self.jitter.decode
        at = self._random.random() * len(values) - 0.5
        return float(np.interp(at, np.arange(len(values)), values))


@dataclass(slots=True)
class VirtualExecutor:
    """Implements the `Executor` protocol over a cost model; `collect` moves the clock.

    `answers` gives the content of a request's answer by request id where later prompts hold it, so that
    prefix caching sees what it would see.
    """

    cost: StepTimer
    capacity: Capacity
    clock: VirtualClock
    answers: dict[str, WorkloadRequest] | None = None
    longest_answer: int = 0
    scatter: Scatter | None = None
    last: StepTime = field(default_factory=StepTime)
    _prompt_lengths: np.ndarray = field(init=False, repr=False)
    _tokens: np.ndarray | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._prompt_lengths = np.zeros(self.capacity.max_num_seqs, dtype=np.int64)
        if self.answers is not None:
            shape = (self.capacity.max_num_seqs, self.longest_answer + 1)
            self._tokens = np.full(shape, FILLER, dtype=np.int32)

    def open(self) -> Capacity:
        return self.capacity

    def launch(self, plan: StepPlan) -> StepPlan:
        """Learns the plan's new rows; the time passes in `collect`."""
        if self._tokens is not None and self.answers is not None:
            for new in plan.added:
                self._prompt_lengths[new.row] = new.prompt_len
                told = self.answers[new.request_id]
                self._tokens[new.row, : told.output_tokens] = segment_tokens(
                    (Segment(told.answer, told.output_tokens),), self.capacity.vocab_size
                )
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        """Moves the clock by the step's time and gives one token for each row that samples."""
        plan, decodes = handle, handle.num_decodes
        self.last = self.cost.step(
            plan.starts[:decodes] + 1,
            plan.num_tokens[decodes:],
            plan.starts[decodes:],
            int(plan.samples.sum()),
            plan.padding,
        )
        duration_ms = self.last.total
        if self.scatter is not None:
            duration_ms *= self.scatter.factor(prefill=len(plan.rows) > decodes)
        self.clock.now_s += duration_ms / 1e3
        rows = plan.rows[plan.samples]
        return StepResult(plan.step, rows, self._draw(plan, rows), duration_ms)

    def close(self) -> None:
        """Nothing to free."""

    def _draw(self, plan: StepPlan, rows: np.ndarray) -> np.ndarray:
        if self._tokens is None:
            return np.full(len(rows), FILLER, dtype=np.int32)
        reached = (plan.starts + plan.num_tokens)[plan.samples]
        return self._tokens[rows, reached - self._prompt_lengths[rows]]

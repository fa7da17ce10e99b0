"""Times chosen steps on an opened executor: decodes, prompt chunks, and both in one step, as they are served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ...core.execute.base import Capacity, Executor
from ...core.request import SamplingParams
from ...core.schedule.plan import NewRow, StepPlan

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The composition of a step: `decodes` at a context, then `chunks` of `tokens` each that begin at `start`."""

    decodes: int = 0
    context: int = 0  # tokens each decode attends to
    chunks: int = 0
    tokens: int = 0  # of each chunk
    start: int = 0  # tokens of its prompt cached before it
    ends: bool = False  # each chunk is its prompt's last one, so that a token is drawn

    @property
    def rows(self) -> int:
        return self.decodes + self.chunks

    @property
    def total_tokens(self) -> int:
        return self.decodes + self.chunks * self.tokens

    @property
    def samples(self) -> int:
        """Tokens drawn."""
        return self.decodes + (self.chunks if self.ends else 0)

    @property
    def context_tokens(self) -> int:
        """Tokens that decodes attend to."""
        return self.decodes * self.context

    @property
    def pairs(self) -> float:
        """Pairs of a chunk's token and one that it attends to."""
        return self.chunks * self.tokens * (self.start + (self.tokens + 1) / 2)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Contexts of the decodes, tokens and starts of the chunks: what `StepCost.step` takes."""
        return (
            np.full(self.decodes, self.context),
            np.full(self.chunks, self.tokens),
            np.full(self.chunks, self.start),
        )

    def describe(self) -> str:
        parts = []
        if self.decodes:
            parts.append(f"{self.decodes} decodes at {self.context:,}")
        if self.chunks:
            parts.append(f"{self.chunks} x {self.tokens} prompt tokens from {self.start:,}")
        return " with ".join(parts)


@dataclass(slots=True)
class Probe:
    """Owns the executor's rows 0 to `rows` - 1 and blocks for `filled` of them, `length` tokens each.

    Rows from `filled` on share the blocks of the first ones: steps of many rows can be timed in a small cache.
    """

    executor: Executor
    capacity: Capacity
    rows: int
    filled: int
    length: int
    _step: int = field(default=0, repr=False)

    def begin(self) -> None:
        """Gives every row its tokens and blocks; the cache behind them is not filled yet."""
        blocks = -(-self.length // self.capacity.block_size)
        spread = max(2, self.capacity.vocab_size - 512)
        tokens = (np.arange(self.length, dtype=np.int32) * 7) % spread
        greedy = SamplingParams(max_tokens=self.length, temperature=0.0, ignore_eos=True)
        added = tuple(NewRow(row, f"probe-{row}", tokens, self.length, greedy) for row in range(self.rows))
        owners = np.arange(self.rows, dtype=np.int32)
        own = (owners % self.filled)[:, None] * blocks + np.arange(blocks, dtype=np.int32)
        plan = self._plan(Point(chunks=1, tokens=1))
        self._run(
            replace(
                plan,
                added=added,
                table_rows=np.repeat(owners, blocks),
                table_indices=np.tile(np.arange(blocks, dtype=np.int32), self.rows),
                table_blocks=own.reshape(-1).astype(np.int32),
            )
        )

    def run(self, point: Point, row: int = 0) -> float:
        """Milliseconds of one step, launch to result; its rows are `row` and those after it."""
        return self._run(self._plan(point, row))

    def end(self) -> None:
        """Gives the rows back, so that an engine may use the executor."""
        self._run(
            replace(self._plan(Point(chunks=1, tokens=1)), removed=np.arange(self.rows, dtype=np.int32))
        )

    def _plan(self, point: Point, row: int = 0) -> StepPlan:
        self._step += 1
        decodes, chunks = point.decodes, point.chunks
        return StepPlan(
            self._step,
            np.arange(row, row + point.rows, dtype=np.int32),
            np.array([point.context - 1] * decodes + [point.start] * chunks, dtype=np.int32),
            np.array([1] * decodes + [point.tokens] * chunks, dtype=np.int32),
            np.array([True] * decodes + [point.ends] * chunks, dtype=bool),
            decodes,
        )

    def _run(self, plan: StepPlan) -> float:
        return self.executor.collect(self.executor.launch(plan)).duration_ms

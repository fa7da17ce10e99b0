"""Times chosen steps on an opened executor: decodes of a given batch and context, prompt chunks of a given size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...core.execute.base import Capacity, Executor
from ...core.request import SamplingParams
from ...core.schedule.plan import NewRow, StepPlan

Progress = Callable[[str], None]


@dataclass(slots=True)
class Probe:
    """Owns the executor's rows 0 to `rows` - 1, each with blocks of its own for `length` tokens."""

    executor: Executor
    capacity: Capacity
    rows: int
    length: int
    _step: int = field(default=0, repr=False)

    def begin(self) -> None:
        """Gives every row its tokens and blocks; the cache behind them is not filled yet."""
        size = self.capacity.block_size
        blocks = -(-self.length // size)
        tokens = (np.arange(self.length, dtype=np.int32) * 7 + 300) % max(
            2, self.capacity.vocab_size - 300
        ) + 256
        greedy = SamplingParams(max_tokens=self.length, temperature=0.0, ignore_eos=True)
        added = tuple(NewRow(row, f"probe-{row}", tokens, self.length, greedy) for row in range(self.rows))
        table_rows = np.repeat(np.arange(self.rows, dtype=np.int32), blocks)
        indices = np.tile(np.arange(blocks, dtype=np.int32), self.rows)
        plan = self._plan([0], [0], [1], decodes=0)
        self._run(
            StepPlan(
                plan.step,
                plan.rows,
                plan.starts,
                plan.num_tokens,
                plan.samples,
                0,
                added=added,
                table_rows=table_rows,
                table_indices=indices,
                table_blocks=np.arange(self.rows * blocks, dtype=np.int32),
            )
        )

    def chunk_ms(self, tokens: int, start: int, row: int = 0, repeats: int = 1) -> float:
        """Milliseconds of a step that computes one prompt chunk; the least of `repeats`."""
        return min(self._run(self._plan([row], [start], [tokens], decodes=0)) for _ in range(repeats))

    def decode_ms(self, sequences: int, context: int, repeats: int = 8) -> float:
        """Milliseconds of a step of so many decodes at a context; the lower quartile of `repeats`.

        Not the least, since a served step also shares the machine, and not the mean, which one
        disturbance moves.
        """
        rows = list(range(sequences))
        plan = (rows, [context - 1] * sequences, [1] * sequences)
        self._run(self._plan(*plan, decodes=sequences))
        return float(
            np.percentile([self._run(self._plan(*plan, decodes=sequences)) for _ in range(repeats)], 25)
        )

    def fill(self, chunk: int) -> None:
        """Computes every row's tokens, so that later steps read real keys and values."""
        for row in range(self.rows):
            for start in range(0, self.length - 1, chunk):
                self.chunk_ms(min(chunk, self.length - 1 - start), start, row)

    def _plan(self, rows: list[int], starts: list[int], tokens: list[int], decodes: int) -> StepPlan:
        self._step += 1
        return StepPlan(
            self._step,
            np.array(rows, dtype=np.int32),
            np.array(starts, dtype=np.int32),
            np.array(tokens, dtype=np.int32),
            np.ones(len(rows), dtype=bool),
            decodes,
        )

    def _run(self, plan: StepPlan) -> float:
        return self.executor.collect(self.executor.launch(plan)).duration_ms

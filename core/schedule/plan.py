"""What one step does, and what came of it. Arrays are aligned: entry i of each speaks of the same row.

Rows are permanent numbers, one per running request. A plan names only what changed since the last
one: rows that begin, rows that ended, block-table entries that are new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..request import Logprob, SamplingParams

_EMPTY = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row begins (first admission, or return after an eviction)."""

    row: int
    request_id: str
    tokens: np.ndarray  # int32 [length]: all tokens known, prompt first
    prompt_len: int
    params: SamplingParams
    prompt_scored: int = 0  # positions whose prompt log-probabilities were told before an eviction


@dataclass(slots=True)  # not frozen: that would cost two microseconds a step
class StepPlan:
    """One step: decodes first, then prefill chunks, in one mixed batch of `num_tokens.sum()` tokens."""

    step: int
    rows: np.ndarray  # int32 [n]
    starts: np.ndarray  # int32 [n] position of the first token of this step (= tokens already in the cache)
    num_tokens: np.ndarray  # int32 [n] tokens to compute, at least 1
    samples: np.ndarray  # bool [n] the step reaches the last known token, so a new one is drawn
    num_decodes: int  # the first num_decodes entries compute one token and sample
    added: tuple[NewRow, ...] = ()
    removed: np.ndarray = field(default_factory=lambda: _EMPTY)  # int32 rows free since the last plan
    table_rows: np.ndarray = field(default_factory=lambda: _EMPTY)  # int32 [k] block-table differences:
    table_indices: np.ndarray = field(default_factory=lambda: _EMPTY)  # tables[row, index] = block
    table_blocks: np.ndarray = field(default_factory=lambda: _EMPTY)
    # Blocks copied before the step: int32 [m, 2], (source, target).
    copies: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int32))
    padding: int = 0  # tokens of padding a padded batch would compute besides

    @property
    def total_tokens(self) -> int:
        return int(self.num_tokens.sum())


@dataclass(slots=True)
class StepResult:
    """What a step produced. `tokens[i]` belongs to `rows[i]`, the rows of the plan with `samples` set."""

    step: int
    rows: np.ndarray  # int32 [m]
    tokens: np.ndarray  # int32 [m]
    duration_ms: float  # launch to results, by the executor's clock
    logprobs: dict[int, Logprob] = field(default_factory=dict)  # by row, where asked for
    # By row, the positions of its chunk in order.
    prompt_logprobs: dict[int, list[Logprob]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # rows whose step failed, and why
    extra: dict[str, Any] = field(default_factory=dict)  # figures for metrics (graph hits, ...)

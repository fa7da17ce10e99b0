"""The step under construction."""

from __future__ import annotations

import numpy as np

from ...policies.base import Budget
from ..request import Request
from .ledger import Blocked
from .params import SchedulerParams
from .plan import NewRow
from .rows import Rows

_NO_ROWS = np.empty(0, dtype=np.intp)


def clamp(budget: Budget, params: SchedulerParams, limit: int | None = None) -> Budget:
    """The policy's budget within the configured limits; an explicit `enable_chunked_prefill` wins.

    `limit` are the tokens of a step that the device has memory for: prompts are cut to it, and nothing is padded.
    """
    most = params.long_prefill_token_threshold
    if most and (budget.chunk_tokens is None or most < budget.chunk_tokens):
        budget = budget._replace(chunk_tokens=most)
    if limit is not None:
        return budget._replace(tokens=min(budget.tokens, limit), chunked=True, pad=False)
    chunked = budget.chunked if params.enable_chunked_prefill is None else params.enable_chunked_prefill
    tokens = min(budget.tokens, params.max_num_batched_tokens)
    if tokens == budget.tokens and chunked == budget.chunked:
        return budget
    return budget._replace(tokens=tokens, chunked=chunked)


class Batch:
    """Collects who runs in a step and counts the budget down."""

    def __init__(self, budget: Budget) -> None:
        self.admitted: list[int] = []  # arrival numbers
        self.evicted: list[int] = []
        self.blocked = Blocked.NONE
        self.blocked_seq = -1
        self._new: list[int] = []  # rows that begin in this step
        self.reset(budget)

    def reset(self, budget: Budget) -> None:
        """An empty step with another budget; evictions stay on record."""
        self.budget = budget
        self.tokens_left = self.prefill_left = budget.tokens
        if budget.prefill_tokens is not None:
            self.prefill_left = min(budget.prefill_tokens, budget.tokens)
        self.decodes = _NO_ROWS  # intp rows that compute one token
        self._prefills: dict[int, int] = {}

    def chunk(self, remaining: int) -> int:
        """Tokens of a prompt with `remaining` left that this step may still compute.

        A whole prompt does not share its budget with the decodes, or one as long as the budget would wait
        for ever; a chunk does.
        """
        if not self.budget.chunked:
            return remaining if remaining <= self.prefill_left else 0
        room = min(remaining, self.prefill_left, self.tokens_left)
        return room if self.budget.chunk_tokens is None else min(room, self.budget.chunk_tokens)

    @property
    def empty(self) -> bool:
        return not len(self.decodes) and not self._prefills

    def add_decodes(self, rows: np.ndarray) -> None:
        self.decodes = rows
        self.tokens_left -= len(rows)

    def add_prefill(self, row: int, tokens: int) -> None:
        self._prefills[row] = tokens
        self.tokens_left -= tokens
        self.prefill_left -= tokens

    def add_new(self, row: int, request: Request, tokens: int) -> None:
        self.admitted.append(request.seq)
        self._new.append(row)
        self.add_prefill(row, tokens)

    def drop(self, row: int) -> None:
        """A row that was evicted runs no more in this step."""
        tokens = self._prefills.pop(row, 0)
        self.tokens_left += tokens
        self.prefill_left += tokens

    def block(self, why: Blocked, seq: int) -> None:
        """Remembers why the first candidate could not start."""
        if self.blocked is Blocked.NONE:
            self.blocked, self.blocked_seq = why, seq

    @property
    def decodes_only(self) -> bool:
        return not self._prefills

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """intp rows and int32 tokens, decodes first."""
        rows = np.array(list(self._prefills), dtype=np.intp)
        tokens = np.array(list(self._prefills.values()), dtype=np.int32)
        if not len(self.decodes):
            return rows, tokens
        ones = np.ones(len(self.decodes), dtype=np.int32)
        return np.concatenate([self.decodes, rows]), np.concatenate([ones, tokens])

    def new_rows(self, rows: Rows) -> tuple[NewRow, ...]:
        """What the executor must know of the rows that begin."""
        if not self._new:
            return ()
        return tuple(
            NewRow(
                row,
                request.id,
                request.tokens(),
                request.prompt_len,
                request.params,
                request.prompt_scored,
            )
            for row in self._new
            for request in (rows.request(row),)
        )

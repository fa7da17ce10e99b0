"""The step under construction."""

from __future__ import annotations

import numpy as np

from ..request import Request
from .ledger import Blocked
from .plan import NewRow
from .rows import Rows

_NO_ROWS = np.empty(0, dtype=np.int32)


class Batch:
    """Collects who runs in a step and counts the budget down."""

    def __init__(self, tokens: int, prefill_tokens: int) -> None:
        self.admitted: list[int] = []  # arrival numbers
        self.evicted: list[int] = []
        self.blocked = Blocked.NONE
        self.blocked_seq = -1
        self._new: list[int] = []  # rows that begin in this step
        self.reset(tokens, prefill_tokens)

    def reset(self, tokens: int, prefill_tokens: int) -> None:
        """An empty step with a fresh budget; evictions stay on record."""
        self.tokens_left = tokens
        self.prefill_left = prefill_tokens
        self._decodes = _NO_ROWS
        self._prefills: dict[int, int] = {}

    @property
    def empty(self) -> bool:
        return not len(self._decodes) and not self._prefills

    @property
    def num_decodes(self) -> int:
        return len(self._decodes)

    def add_decodes(self, rows: np.ndarray) -> None:
        self._decodes = rows
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

    @property
    def decodes(self) -> np.ndarray:
        """int32 rows that compute one token."""
        return self._decodes

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """int32 rows and tokens, decodes first."""
        rows = np.array(list(self._prefills), dtype=np.int32)
        tokens = np.array(list(self._prefills.values()), dtype=np.int32)
        if not len(self._decodes):
            return rows, tokens
        ones = np.ones(len(self._decodes), dtype=np.int32)
        return np.concatenate([self._decodes, rows]), np.concatenate([ones, tokens])

    def new_rows(self, rows: Rows) -> tuple[NewRow, ...]:
        """What the executor must know of the rows that begin."""
        return tuple(
            NewRow(row, request.id, request.tokens(), request.prompt_len, request.params)
            for row in self._new
            for request in (rows.request(row),)
        )

"""The running requests: their rows, their blocks, and who of them decodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kv.cache import KVCache, Match
from ..request import Request, State
from .params import SchedulerParams
from .rows import Rows

_NO_ROWS = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Decodes:
    """The decoding rows as arrays, kept from step to step while only they run."""

    rows: np.ndarray  # intp [n]: numpy indexes by these in a third of the time that int32 takes
    plan_rows: np.ndarray  # int32 [n], the same, as a plan names them
    starts: np.ndarray  # int32 [n] tokens each has in the cache
    context_tokens: int  # their sum
    seqs: np.ndarray  # int64 [n]
    tokens: np.ndarray  # int32 [n], one each
    samples: np.ndarray  # bool [n], all of them


class Running:
    """Rows and blocks begin and end together here, so neither can be forgotten."""

    def __init__(self, params: SchedulerParams) -> None:
        self.params = params
        self.rows = Rows(params.max_num_seqs, params.max_length)
        self.kv = KVCache(
            num_blocks=params.num_blocks,
            block_size=params.block_size,
            max_rows=params.max_num_seqs,
            max_tokens=params.max_length,
            prefix_caching=params.enable_prefix_caching,
        )
        self.decoding: list[int] = []  # rows with one token to compute, in order of admission
        self.prefilling: list[int] = []  # rows with more
        self._decodes: Decodes | None = None  # `decoding` as arrays; None when it has changed
        self._removed: list[int] = []

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    def all_rows(self) -> list[int]:
        return self.decoding + self.prefilling

    @property
    def decodes(self) -> Decodes:
        if self._decodes is None:
            rows = np.array(self.decoding, dtype=np.intp)
            starts, count = self.rows.computed[rows], len(rows)
            ones, every = np.ones(count, dtype=np.int32), np.ones(count, dtype=bool)
            self._decodes = Decodes(
                rows, rows.astype(np.int32), starts, int(starts.sum()), self.rows.seq[rows], ones, every
            )
        return self._decodes

    def advance(self, rows: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """Counts a step's tokens as computed; returns which rows reach their target and so draw a token."""
        columns = self.rows
        columns.computed[rows] += num_tokens
        samples = columns.computed[rows] == columns.target[rows]
        columns.target[rows[samples]] += 1
        self._decodes = None
        return samples

    def advance_decodes(self) -> np.ndarray:
        """The same for one token of every decoding row; returns the tokens each has in the cache now."""
        decodes = self.decodes
        reached = decodes.starts + 1
        self.rows.computed[decodes.rows] = reached
        self.rows.target[decodes.rows] = reached + 1
        decodes.starts = reached
        decodes.context_tokens += len(reached)
        return reached

    def begin(self, request: Request, match: Match, tokens: int, tenant: int) -> int:
        """Gives a request a row on its cached prefix, with blocks for `tokens` tokens; returns the row."""
        limit = min(request.max_length, self.params.max_length)
        row = self.rows.begin(request, match.tokens, limit, tenant)
        self.kv.begin(row, match)
        self.kv.grow(row, tokens)
        self.kv.prefix.queries += request.length
        self.kv.prefix.hits += match.tokens
        request.to(State.RUNNING)
        request.row = row
        self.prefilling.append(row)
        return row

    def promote(self, rows: np.ndarray) -> None:
        """Prefilling rows whose prompt is complete decode from the next step on."""
        for row in rows.tolist():
            self.prefilling.remove(row)
            self.decoding.append(row)
            self._decodes = None

    def retreat(self, rows: np.ndarray, starts: np.ndarray, samples: np.ndarray) -> None:
        """Undoes `advance`: the rows' tokens from `starts` on count as not computed, and nothing was drawn."""
        columns = self.rows
        columns.computed[rows] = starts
        columns.target[rows[samples]] -= 1
        self._decodes = None

    def demote(self, rows: np.ndarray) -> None:
        """Undoes `promote`; the rows are the first of those with more to compute."""
        for row in reversed(rows.tolist()):
            self.decoding.remove(row)
            self.prefilling.insert(0, row)
        self._decodes = None

    def leave(self, request: Request) -> None:
        """Takes row and blocks from a request; full blocks stay to be found by later ones."""
        row = request.row
        done = min(self.rows.computed[row], self.rows.known[row])
        self.kv.commit(row, request, self.rows.tokens[row, :done])
        if row in self.prefilling:
            self.prefilling.remove(row)
        else:
            self.decoding.remove(row)
            self._decodes = None
        self.kv.end(row)
        self.rows.end(row)
        self._removed.append(row)
        request.row = -1

    def take_removed(self) -> np.ndarray:
        """int32: rows that ended since the last call."""
        if not self._removed:
            return _NO_ROWS
        removed = np.array(self._removed, dtype=np.int32)
        self._removed = []
        return removed

    def promised_blocks(self) -> int:
        """Blocks that prompts which have begun will still need."""
        if not self.params.reserve_full_prompt:
            return 0
        counts, targets = self.kv.tables.count, self.rows.target
        return sum(
            max(0, self.kv.blocks_for(int(targets[row])) - int(counts[row])) for row in self.prefilling
        )

    def waste(self) -> float:
        """Share of the slots in running requests' blocks that hold no token."""
        return self.kv.waste(np.array(self.all_rows(), dtype=np.int32), self.rows.computed)

    def check_integrity(self) -> None:
        """Raises IntegrityError naming the first broken invariant of rows, tables and blocks."""
        self.kv.check_integrity(np.array(self.all_rows(), dtype=np.int32), self.rows.computed)

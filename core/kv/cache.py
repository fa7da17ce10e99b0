"""The paged KV cache as the scheduler sees it: blocks, tables and prefixes behind one face."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..errors import IntegrityError
from ..request import Request
from .pool import BlockPool
from .prefix import PrefixIndex, extend_chain
from .tables import BlockTables


@dataclass(frozen=True, slots=True)
class Match:
    """What is already in the cache for a request: whole blocks, and how many tokens of them to use."""

    blocks: list[int]
    tokens: int


class KVCache:
    """Blocks for rows. A row's blocks hold its tokens in order, `block_size` each."""

    def __init__(
        self, *, num_blocks: int, block_size: int, max_rows: int, max_tokens: int, prefix_caching: bool
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.prefix = PrefixIndex()
        self.prefix_caching = prefix_caching
        self.tables = BlockTables(max_rows, max_tokens, block_size)
        self.newly_hashed: dict[Request, None] | None = None  # whose hashes grew; a recording empties it

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def match(self, request: Request, tokens: np.ndarray) -> Match:
        """The longest cached prefix of `tokens` (int32, all that the request knows). At least one token is
        left to compute, since a step must end in logits.
        """
        if not self.prefix_caching:
            return Match([], 0)
        size = self.block_size
        self._hash(request, tokens, len(tokens) // size)
        blocks = self.prefix.lookup(request.hashes, tokens, size)
        return Match(blocks, min(len(blocks) * size, len(tokens) - 1))

    def fork(self, row: int, tokens: int) -> Match:
        """The blocks of another row that hold its first `tokens` tokens."""
        return Match(self.tables.blocks(row)[: self.blocks_for(tokens)], tokens)

    def cost(self, match: Match, tokens: int) -> int:
        """Free blocks that a row for `tokens` tokens would take, given what it shares: new ones, matched
        ones that lie on the free list, and a copy where it would write into a shared block.
        """
        revived = self.pool.count_free(match.blocks)
        copied = 1 if match.tokens % self.block_size else 0
        return self.blocks_for(tokens) - len(match.blocks) + revived + copied

    def begin(self, row: int, match: Match) -> None:
        """Starts a row on shared blocks. A block it would write into is copied first (copy-on-write)."""
        self.pool.share(match.blocks)
        blocks = list(match.blocks)
        if match.tokens % self.block_size:
            shared = blocks[-1]
            blocks[-1] = self._take(1)[0]
            self.tables.copy_block(shared, blocks[-1])
            self.pool.release([shared], kept=self.prefix.blocks)
        self.tables.extend(row, blocks)

    def grow(self, row: int, tokens: int) -> None:
        """Blocks so that the row can hold `tokens` tokens; the caller has seen that they are free."""
        missing = self.blocks_for(tokens) - int(self.tables.count[row])
        if missing > 0:
            self.tables.extend(row, self._take(missing))

    def grow_each(self, rows: np.ndarray) -> None:
        """One block to each row (no row twice)."""
        self.tables.append_each(rows, self._take(len(rows)))

    def commit(self, row: int, request: Request, tokens: np.ndarray, start: int = 0) -> None:
        """Offers the full blocks that hold `tokens` (int32, computed) to later requests, from the block
        of token `start` on (the ones before were offered already).
        """
        if not self.prefix_caching:
            return
        size = self.block_size
        full = len(tokens) // size
        self._hash(request, tokens, full)
        first = start // size
        if first < full:
            blocks = self.tables.table[row, first:full].tolist()
            self.prefix.insert(
                request.hashes[first:full], blocks, tokens[first * size : full * size].tobytes()
            )

    def end(self, row: int) -> None:
        """Gives a row's blocks back, the last ones first in line for reuse."""
        self.pool.release(reversed(self.tables.clear(row)), kept=self.prefix.blocks)

    def waste(self, rows: np.ndarray, computed: np.ndarray) -> float:
        """Share of the slots in the rows' blocks that hold no token."""
        slots = int(self.tables.slots[rows].sum())
        return 1.0 - int(computed[rows].sum()) / slots if slots else 0.0

    def check_integrity(self, rows: np.ndarray, computed: np.ndarray) -> None:
        """Raises IntegrityError naming the first invariant that does not hold. O(blocks)."""
        held: Counter[int] = Counter()
        for row in rows.tolist():
            blocks = self.tables.blocks(row)
            if len(set(blocks)) != len(blocks):
                raise IntegrityError(f"row {row} holds a block twice: {blocks}")
            if int(computed[row]) > len(blocks) * self.block_size:
                raise IntegrityError(f"row {row}: {computed[row]} tokens in {len(blocks)} blocks")
            held.update(blocks)
        others = np.setdiff1d(np.nonzero(self.tables.count)[0], rows)
        if len(others):
            raise IntegrityError(f"rows {others.tolist()} hold blocks but do not run")
        self.pool.check(held)
        self.prefix.check()

    def _hash(self, request: Request, tokens: np.ndarray, num_blocks: int) -> None:
        """Hashes of the first blocks of `tokens`, as far as the request has none yet."""
        hashes = request.hashes
        if len(hashes) < num_blocks:
            extend_chain(hashes, tokens, self.block_size, num_blocks, request.cache_salt)
            if self.newly_hashed is not None:
                self.newly_hashed[request] = None

    def _take(self, count: int) -> list[int]:
        blocks = self.pool.take(count)
        if len(self.prefix):
            self.prefix.forget(blocks)
        return blocks

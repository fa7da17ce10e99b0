"""Block tables: one numpy row a running request. Only differences leave for the executor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class TableChanges(NamedTuple):
    """int32 arrays: tables[rows[i], indices[i]] became blocks[i]; copies is [m, 2] (source, target), all at once."""

    rows: np.ndarray
    indices: np.ndarray
    blocks: np.ndarray
    copies: np.ndarray


_NONE = np.empty(0, dtype=np.int32)
_NO_COPIES = np.empty((0, 2), dtype=np.int32)


class BlockTables:
    """`table[row, :count[row]]` are the blocks of a row, in order; they hold `slots[row]` tokens."""

    def __init__(self, max_rows: int, max_tokens: int, block_size: int) -> None:
        self.table = np.zeros((max_rows, -(-max_tokens // block_size)), dtype=np.int32)
        self.count = np.zeros(max_rows, dtype=np.int32)
        self.slots = np.zeros(max_rows, dtype=np.int32)
        self._block_size = block_size
        self._changed: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._copies: dict[int, int] = {}  # target -> source

    def blocks(self, row: int) -> list[int]:
        return self.table[row, : self.count[row]].tolist()

    def append_each(self, rows: np.ndarray, blocks: list[int]) -> None:
        """One block to each of `rows` (intp, no row twice)."""
        values = np.array(blocks, dtype=np.int32)
        indices = self.count[rows]
        self.table[rows, indices] = values
        count = indices + 1
        self.count[rows] = count
        self.slots[rows] = count * self._block_size
        self._changed.append((rows.astype(np.int32), indices, values))

    def extend(self, row: int, blocks: list[int]) -> None:
        """Several blocks to one row."""
        if not blocks:
            return
        start = int(self.count[row])
        values = np.array(blocks, dtype=np.int32)
        self.table[row, start : start + len(blocks)] = values
        self.count[row] = start + len(blocks)
        self.slots[row] = (start + len(blocks)) * self._block_size
        indices = np.arange(start, start + len(blocks), dtype=np.int32)
        self._changed.append((np.full(len(blocks), row, dtype=np.int32), indices, values))

    def copy_block(self, source: int, target: int) -> None:
        """The executor copies `source` into `target` before the next step writes anything. It reads all sources
        first, so the copy of a block that is yet to be filled by a copy is one of that copy's source.
        """
        self._copies[target] = self._copies.get(source, source)

    def clear(self, row: int) -> list[int]:
        """Empties a row and returns what it held."""
        blocks = self.blocks(row)
        self.count[row] = self.slots[row] = 0
        return blocks

    def take_changes(self) -> TableChanges:
        """What changed since the last call, in order."""
        if not self._changed and not self._copies:
            return TableChanges(_NONE, _NONE, _NONE, _NO_COPIES)
        changed, copies = self._changed, self._copies
        self._changed, self._copies = [], {}
        copied = (
            np.array([*zip(copies.values(), copies, strict=True)], dtype=np.int32) if copies else _NO_COPIES
        )
        if not changed:
            return TableChanges(_NONE, _NONE, _NONE, copied)
        if len(changed) == 1:
            return TableChanges(*changed[0], copied)
        rows, indices, blocks = (np.concatenate(part) for part in zip(*changed, strict=True))
        return TableChanges(rows, indices, blocks, copied)

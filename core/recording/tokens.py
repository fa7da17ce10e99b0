"""Stand-ins for the tokens of a recorded run, whose blocks are known by number only."""

from __future__ import annotations

from typing import Any

import numpy as np


class RecordedTokens:
    """Tokens that are equal wherever the recorded blocks were equal, and nowhere else. Sequences go by arrival number."""

    def __init__(self, lines: list[dict[str, Any]], block_size: int) -> None:
        """lines: those of a recording, in order. Raises KeyError or TypeError where they are damaged."""
        self._block_size = block_size
        self._blocks: dict[int, list[int]] = {}  # by sequence
        for line in lines:
            if line["type"] in ("blocks", "request"):
                self._blocks.setdefault(line["seq"], []).extend(line["hash_ids"])
        self._same: dict[tuple[int, int], int] = {}  # (block, offset) -> a block with the same token there
        self._share_prompts(lines)

    def prompt(self, seq: int, length: int) -> np.ndarray:
        """int32 [length]: the first tokens of a sequence."""
        return np.array([self.at(seq, place) for place in range(length)], dtype=np.int32)

    def at(self, seq: int, place: int) -> int:
        """One token of a sequence."""
        blocks = self._blocks.get(seq, ())
        index, offset = divmod(place, self._block_size)
        if index >= len(blocks):
            return (1 << 30) + (seq * 1_000_003 + place) % (1 << 30)
        return (self._origin(blocks[index], offset) * 1_000_003 + offset) % (1 << 30)

    def _origin(self, block: int, offset: int) -> int:
        """The block that says which token stands at an offset of this one."""
        while (block, offset) in self._same:
            block = self._same[block, offset]
        return block

    def _share_prompts(self, lines: list[dict[str, Any]]) -> None:
        """Sequences of one prompt have its blocks, of which the first may have gone before it had any; and in the
        block where a prompt ends what is drawn may differ from what the first drew.
        """
        firsts: dict[str, int] = {}
        for line in lines:
            if line["type"] != "add":
                continue
            seq, first = line["seq"], firsts.get(line["fork_of"])
            firsts[line["id"]] = seq if first is None else first
            if first is None:
                continue
            whole, tail = divmod(line["input_tokens"], self._block_size)
            own, shared = self._blocks.get(seq, []), self._blocks.setdefault(first, [])
            shared += own[len(shared) : whole]
            if not tail or len(own) <= whole:
                continue
            if len(shared) == whole:
                shared.append(-1 - first)  # a block of its own, which no other has
            for offset in range(tail):
                one, other = self._origin(shared[whole], offset), self._origin(own[whole], offset)
                if one != other:
                    self._same[other, offset] = one

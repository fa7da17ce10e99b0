"""Fixed-size blocks: who holds them, and which is reused next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable

from ..errors import IntegrityError


class BlockPool:
    """Reference counts and a free list in order of last use; every operation is O(1) a block.

    A freed block keeps its content until it is taken again. Blocks that are `kept` when freed (their content
    may be asked for again) queue at the far end; others are reused first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def take(self, count: int) -> list[int]:
        """The `count` blocks that were free longest, each with one reference. Raises IntegrityError if
        there are fewer: the caller decides what gives way, before it takes.
        """
        if count > len(self._free):
            raise IntegrityError(f"{count} blocks wanted, {len(self._free)} free")
        pop, refs = self._free.popitem, self._refs
        blocks = [pop(last=False)[0] for _ in range(count)]
        for block in blocks:
            refs[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each; a free one leaves the free list with its content intact."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1

    def release(self, blocks: Iterable[int], *, kept: Container[int] = ()) -> None:
        """One reference less of each, in order. Raises IntegrityError if there was none."""
        refs, free = self._refs, self._free
        for block in blocks:
            left = refs[block] - 1
            if left < 0:
                raise IntegrityError(f"block {block} released, but nobody holds it")
            refs[block] = left
            if left == 0:
                free[block] = None
                if block not in kept:
                    free.move_to_end(block, last=False)

    def check(self, held: dict[int, int]) -> None:
        """Raises IntegrityError unless reference counts equal `held` (block -> holders) and the free list
        holds exactly the others.
        """
        for block, refs in enumerate(self._refs):
            if refs != held.get(block, 0):
                raise IntegrityError(f"block {block}: {refs} references, {held.get(block, 0)} holders")
            if (refs == 0) != (block in self._free):
                raise IntegrityError(f"block {block}: {refs} references, free: {block in self._free}")
        if len(self._free) + sum(1 for refs in self._refs if refs) != self.num_blocks:
            raise IntegrityError("the free list and the held blocks do not add up")

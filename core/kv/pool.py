"""Fixed-size blocks: who holds them, and which is reused next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable

from ..errors import IntegrityError


class BlockPool:
    """Reference counts and what is free; every operation is O(1) a block.

    A freed block keeps its content until it is taken again. Blocks that are `kept` when freed (their content
    may be asked for again) are reused last, in the order in which they were freed; others first, the latest before.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))  # the last one is taken first
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._kept)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds."""
        refs = self._refs
        return [refs[block] for block in blocks].count(0)

    def take(self, count: int) -> list[int]:
        """The `count` blocks that are reused first, each with one reference. Raises IntegrityError if there
        are fewer: the caller decides what gives way, before it takes.
        """
        if count > self.num_free:
            raise IntegrityError(f"{count} blocks wanted, {self.num_free} free")
        rest = max(0, len(self._empty) - count)
        blocks = self._empty[rest:][::-1]
        del self._empty[rest:]
        blocks += [self._kept.popitem(last=False)[0] for _ in range(count - len(blocks))]
        refs = self._refs
        for block in blocks:
            refs[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each; a free one leaves the free list with its content intact. Raises
        IntegrityError for a free one that was not kept.
        """
        for block in blocks:
            if self._refs[block] == 0:
                if block not in self._kept:
                    raise IntegrityError(f"block {block} shared, but its content was not kept")
                del self._kept[block]
            self._refs[block] += 1

    def release(self, blocks: Iterable[int], *, kept: Container[int] = ()) -> None:
        """One reference less of each, in order. Raises IntegrityError if there was none."""
        refs, empty, held = self._refs, self._empty, self._kept
        for block in blocks:
            left = refs[block] - 1
            if left < 0:
                raise IntegrityError(f"block {block} released, but nobody holds it")
            refs[block] = left
            if left == 0:
                if block in kept:
                    held[block] = None
                else:
                    empty.append(block)

    def check(self, held: dict[int, int]) -> None:
        """Raises IntegrityError unless reference counts equal `held` (block -> holders) and exactly the others are free."""
        holders = [0] * self.num_blocks
        for block, count in held.items():
            holders[block] = count
        if holders != self._refs:
            block = next(block for block in range(self.num_blocks) if holders[block] != self._refs[block])
            raise IntegrityError(f"block {block}: {self._refs[block]} references, {holders[block]} holders")
        if sorted([*self._empty, *self._kept]) != [block for block, refs in enumerate(holders) if not refs]:
            raise IntegrityError("the free list and the held blocks do not add up")

"""Prefix caching: which block holds the tokens that follow a given prefix."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from hashlib import blake2b
from itertools import takewhile

import numpy as np

from ..errors import IntegrityError

_DIGEST_BYTES = 16


def extend_chain(
    hashes: list[bytes], tokens: np.ndarray, block_size: int, num_blocks: int, salt: bytes
) -> None:
    """Grows `hashes` in place to `num_blocks` chained block hashes of `tokens` (int32). Requests with another
    salt share nothing: every chain starts from it.
    """
    parent = (
        hashes[-1] if hashes else blake2b(salt, digest_size=_DIGEST_BYTES, person=b"camshaft-kv").digest()
    )
    start = len(hashes) * block_size
    data = np.ascontiguousarray(tokens[start : num_blocks * block_size], dtype=np.int32).tobytes()
    width = block_size * 4
    for offset in range(0, len(data), width):
        parent = blake2b(parent + data[offset : offset + width], digest_size=_DIGEST_BYTES).digest()
        hashes.append(parent)


class PrefixIndex:
    """Chained block hash -> block. A hit must also equal the tokens, so a collision is a miss."""

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[int, bytes]] = {}  # block and its tokens
        self._hash_of: dict[int, bytes] = {}
        self.queries = 0  # tokens looked up at admission
        self.hits = 0  # of these, found

    @property
    def blocks(self) -> KeysView[int]:
        """Those whose content may be found."""
        return self._hash_of.keys()

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, chain: Iterable[bytes], tokens: np.ndarray, block_size: int) -> list[int]:
        """The blocks of the longest known prefix of `tokens` (int32), in order."""
        held: list[tuple[int, bytes]] = []
        for key in chain:
            entry = self._entries.get(key)
            if entry is None:
                break
            held.append(entry)
        # Compared at once: a prompt that waits for blocks is looked up at every step.
        data = tokens[: len(held) * block_size].tobytes()
        if b"".join([content for _, content in held]) != data:
            width = block_size * tokens.itemsize
            same = (data[i * width : (i + 1) * width] == content for i, (_, content) in enumerate(held))
            held = held[: sum(takewhile(bool, same))]
        return [block for block, _ in held]

    def insert(self, keys: Sequence[bytes], blocks: Sequence[int], tokens: bytes) -> None:
        """Names each of `blocks` as the holder of a full block's content, `tokens` in order; the first holder stays."""
        entries, hash_of = self._entries, self._hash_of
        width = len(tokens) // len(blocks)
        for key, block, offset in zip(keys, blocks, range(0, len(tokens), width), strict=True):
            if key not in entries and block not in hash_of:
                entries[key] = (block, tokens[offset : offset + width])
                hash_of[block] = key

    def forget(self, blocks: Iterable[int]) -> None:
        """The blocks are about to be overwritten."""
        entries, hash_of = self._entries, self._hash_of
        for block in blocks:
            key = hash_of.pop(block, None)
            if key is not None:
                del entries[key]

    def clear(self) -> None:
        """No block is found from now on."""
        self._entries.clear()
        self._hash_of.clear()

    def check(self) -> None:
        """Raises IntegrityError unless both directions agree."""
        if len(self._entries) != len(self._hash_of):
            raise IntegrityError(f"prefix index: {len(self._entries)} hashes, {len(self._hash_of)} blocks")
        for key, (block, _) in self._entries.items():
            if self._hash_of.get(block) != key:
                raise IntegrityError(f"prefix index: block {block} does not point back to its hash")

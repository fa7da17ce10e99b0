"""What a prompt is made of: named contents, of which equal ones give equal tokens. No text is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..splitmix import GAMMA, mix

# Content ids of different makings never meet.
PREFIX, PROMPT, ANSWER, HASH = (kind << 64 for kind in range(4))

RESERVED_TOKENS = 256  # the lowest ids are often special or single bytes; prompts do not use them


class Segment(NamedTuple):
    """A run of tokens of one content, from that content's start."""

    content: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a load. `segments` cover its prompt; equal leading segments are equal leading tokens."""

    index: int
    # None: as soon as a client is free (closed loop), or `think_s` after `after` ended.
    arrival_s: float | None
    input_tokens: int
    output_tokens: int
    segments: tuple[Segment, ...]
    answer: int  # content id of the answer, which a later turn's prompt holds
    session: int = -1
    turn: int = 0
    after: int = -1  # index of the request that must have ended first; -1 is none
    think_s: float = 0.0
    tenant: str = ""
    priority: int = 0
    deadline_ms: float | None = None


def segment_tokens(segments: tuple[Segment, ...], vocab_size: int, seed: int = 0) -> np.ndarray:
    """int32 [sum of lengths] token ids in [RESERVED_TOKENS, vocab_size): a function of seed, content and position."""
    counts = np.array([segment.tokens for segment in segments], dtype=np.int64)
    starts = np.cumsum(counts) - counts
    positions = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(starts, counts)
    steps = positions.astype(np.uint64) * GAMMA
    mixed = mix(np.repeat(_keys([segment.content for segment in segments], seed), counts) + steps)
    low = min(RESERVED_TOKENS, max(vocab_size - 1, 0))
    return (mixed % np.uint64(max(vocab_size - low, 1)) + np.uint64(low)).astype(np.int32)


_WORD = (1 << 64) - 1


def _keys(contents: list[int], seed: int) -> np.ndarray:
    """uint64 [n]: where each content's stream of tokens starts."""
    makings = np.array([content >> 64 for content in contents], dtype=np.uint64)
    numbers = np.array([content & _WORD for content in contents], dtype=np.uint64)
    return mix(numbers + mix(makings + mix(np.full(1, seed & _WORD, dtype=np.uint64) + GAMMA)))

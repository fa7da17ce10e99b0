"""How fast one stream could be: every token reads its weights once, and memory is only so fast."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

_CHUNK = 64 << 20  # bytes; several of them are far above any cache


def read_bandwidth(seconds: float = 1.0) -> float:
    """Bytes a second that this machine's cores read from memory together: the best of several passes.

    The largest of many numbers, which NumPy finds as fast as memory gives them and without Python's lock.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [np.ones(_CHUNK // 4, dtype=np.float32) for _ in range(max(cores, 8))]
    total = sum(part.nbytes for part in parts)
    best, end = 0.0, time.perf_counter() + seconds
    with ThreadPoolExecutor(cores) as pool:
        while time.perf_counter() < end:
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, total / (time.perf_counter() - start))
    return best


@dataclass(slots=True)
class Floor:
    """Tokens a second of one stream that did nothing but read its weights.

    Memory is timed again and again while something else is measured beside it; the best pass counts, so
    that no busy moment makes the floor look low.
    """

    token_bytes: int
    samples: list[float] = field(default_factory=list)  # bytes a second

    def sample(self, seconds: float = 0.6) -> None:
        self.samples.append(read_bandwidth(seconds))

    @property
    def tokens_per_s(self) -> float | None:
        """None before the first sample."""
        return max(self.samples) / self.token_bytes if self.samples else None

"""How fast one stream could be: every token reads all weights once, and memory is only so fast."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

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


def single_stream_floor(weight_bytes: int, bandwidth: float) -> float:
    """Tokens a second of one stream, if it did nothing but read the weights."""
    return bandwidth / weight_bytes

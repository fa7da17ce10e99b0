"""Random numbers for the draw: a counter-based stream for each seeded request, one generator for the rest.

A seeded request's number is a pure function of its seed and of how many tokens it has drawn, so its text
does not depend on its company, nor on an eviction that makes it start again. It is the n-th output of
SplitMix64.
"""

from __future__ import annotations

import numpy as np

from ..splitmix import GAMMA, mix


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64 [m] in [0, 1): number `positions[i]` (from 0) of the stream of `seeds[i]` (uint64)."""
    # The seed is mixed first: streams of neighbouring seeds would otherwise be shifts of one another.
    state = mix(seeds + GAMMA) + (positions.astype(np.uint64) + np.uint64(1)) * GAMMA
    return (mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def as_uint64(seed: int) -> np.uint64:
    """Any integer a client may send as a seed, wrapped into 64 bits."""
    return np.uint64(seed & 0xFFFFFFFFFFFFFFFF)

"""Random numbers for the draw: a counter-based stream for each seeded request, one generator for the rest.

A seeded request's number is a pure function of its seed and of how many tokens it has drawn, so its text
does not depend on its company, nor on an eviction that makes it start again. It is the n-th output of
SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), which can
be computed without the ones before.
"""

from __future__ import annotations

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64 [m] in [0, 1): number `positions[i]` (from 0) of the stream of `seeds[i]` (uint64)."""
    # The seed is mixed first: streams of neighbouring seeds would otherwise be shifts of one another.
    state = _mix(seeds + _GAMMA) + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def as_uint64(seed: int) -> np.uint64:
    """Any integer a client may send as a seed, wrapped into 64 bits."""
    return np.uint64(seed & 0xFFFFFFFFFFFFFFFF)

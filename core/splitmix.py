"""SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), a counter at a time.

Output n of a state is `mix(state + n * GAMMA)`, n from 1: any of them is computed without the ones before.
"""

from __future__ import annotations

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio


def mix(value: np.ndarray) -> np.ndarray:
    """uint64, the size of `value`: the finaliser, in which every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))

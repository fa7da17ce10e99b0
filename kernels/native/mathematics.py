"""Elementary functions for loops that the compiler turns into vector code; the same bits with and without it."""

from __future__ import annotations

import math

import numpy as np

from .jit import jit
from .vector import float_of_bits, fma

LOG2E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)  # few bits, so that a small whole number times it is exact
LN2_LOW = np.float32(-2.12194440e-4)
ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it leaves a float32 rounded to a whole number
LOWEST, HIGHEST = np.float32(-80.0), np.float32(88.0)
_ZERO = np.float32(0.0)
# Taylor terms of e^r, |r| <= ln(2) / 2: the first one left out is below 2^-26.
TERMS = tuple(np.float32(1.0 / math.factorial(n)) for n in range(2, 8))
_C2, _C3, _C4, _C5, _C6, _C7 = TERMS
_ONE = np.float32(1.0)


@jit(inline="always")
def exp(x: np.float32) -> np.float32:
    """e^x for float32, within 2 units of the last place; e^88 from there on, and 0 below e^-80.

    Smaller results would make products with them subnormal, which processors are very slow at.
    """
    vanishes = x < LOWEST
    x = min(max(x, LOWEST), HIGHEST)
    shifted = fma(x, LOG2E, ROUND)
    whole = shifted - ROUND
    rest = fma(whole, -LN2_LOW, fma(whole, -LN2_HIGH, x))
    tail = fma(rest, fma(rest, fma(rest, fma(rest, fma(rest, _C7, _C6), _C5), _C4), _C3), _C2)
    scale = float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))
    value = fma(rest * rest, tail, rest + _ONE) * scale
    return _ZERO if vanishes else value


@jit(inline="always")
def silu(x: np.float32) -> np.float32:
    """x / (1 + e^-x)."""
    return x / (_ONE + exp(-x))


@jit(fastmath={"reassoc", "nsz"})
def sum_of_squares(x: np.ndarray) -> np.float32:
    """Sum of x[i]^2 in an order that the compiler chose once: the same for every call."""
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    return total

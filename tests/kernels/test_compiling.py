"""That kernels are compiled is told of once, however many there are."""

from __future__ import annotations

from numba import njit

from camshaft.kernels.native.compiling import COMPILING, compiling


@njit
def inner(x: float) -> float:
    return x + 1


@njit
def outer(x: float) -> float:
    return inner(x) * 2


def test_compiling_is_told_of_once() -> None:
    told: list[str] = []
    with compiling(told.append):
        assert [outer(1), outer(2)] == [4, 6]
        assert outer(1.5) == 5.0
    assert told == [COMPILING]
    assert outer(True) == 4  # nobody listens any more
    with compiling(told.append):
        assert outer(1) == 4
    assert told == [COMPILING]  # nothing was compiled

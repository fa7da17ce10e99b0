"""Kernels that are compiled are told of, each once, whatever they call."""

from __future__ import annotations

from numba import njit

from camshaft.core.execute.compiling import STAGE, compiling


@njit
def inner(x: float) -> float:
    return x + 1


@njit
def outer(x: float) -> float:
    return inner(x) * 2


def test_each_compilation_is_told_of_once() -> None:
    told: list[tuple[str, int, int]] = []
    with compiling(lambda *what: told.append(what)) as watch:
        assert [outer(1), outer(2)] == [4, 6]
        assert outer(1.5) == 5.0
    assert told == [(STAGE, 1, 0), (STAGE, 2, 0)]
    assert watch.count == 2
    assert outer(True) == 4  # nobody listens any more
    assert watch.count == 2

from __future__ import annotations

import threading
import time
from typing import Any

import numba
import numpy as np
import pytest

from camshaft.kernels import threads
from camshaft.kernels.native import vector
from camshaft.kernels.native.jit import worker
from camshaft.kernels.native.team import Job, Team, take

carray: Any = numba.carray  # pyright: ignore[reportPrivateImportUsage]
pointer: Any = vector.pointer


@worker
def _count(control: int, arguments: int) -> None:
    """Adds 1 to each of n cells, one task a cell."""
    given = carray(pointer(arguments), (2,), np.int64)
    cells = carray(pointer(given[0]), (given[1],), np.int64)
    task = take(control, 1)
    while task < given[1]:
        cells[task] += 1
        task = take(control, 1)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_task_is_done_once_and_before_run_returns(size: int) -> None:
    team = Team(size)
    block = np.zeros(2, dtype=np.int64)
    for n in [1, 2, 3, 100, 5000] * 40:
        cells = np.zeros(n, dtype=np.int64)
        block[:] = cells.ctypes.data, n
        team.run(_count.address, block.ctypes.data)
        assert np.all(cells == 1)


def test_helpers_that_fell_asleep_join_again() -> None:
    team = Team(2)
    deadline = time.monotonic() + 60
    while not team._asleep and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert team._asleep
    cells, block = np.zeros(20_000, dtype=np.int64), np.zeros(2, dtype=np.int64)
    block[:] = cells.ctypes.data, len(cells)
    rounds = 0
    while team._asleep and time.monotonic() < deadline:
        team.run(_count.address, block.ctypes.data)
        rounds += 1
    assert not team._asleep
    assert np.all(cells == rounds)


def test_callers_in_several_threads_take_turns() -> None:
    job, wrong = Job(_count, "qq"), []

    def call() -> None:
        for n in range(1, 200):
            cells = np.zeros(n, dtype=np.int64)
            job(cells.ctypes.data, n)
            if not np.all(cells == 1):
                wrong.append(n)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_cores_are_limited_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    threads.usable_cores.cache_clear()
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert threads.usable_cores() == 1
        threads.usable_cores.cache_clear()
        monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
        assert threads.usable_cores() >= 1
    finally:
        threads.usable_cores.cache_clear()

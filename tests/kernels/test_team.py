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
from camshaft.kernels.native.team import GATE_BYTES, INSIDE, Job, Program, Team, ready, record, take

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


@worker
def _prefix(gate: int, arguments: int) -> None:
    """Cell i of each of n becomes one more than the largest of the source's cells from i on, one task a cell."""
    given = carray(pointer(arguments), (3,), np.int64)
    n = given[2]
    source, cells = carray(pointer(given[0]), (n,), np.int64), carray(pointer(given[1]), (n,), np.int64)
    task = take(gate, 1)
    if task < n:
        ready(gate)
    while task < n:
        cells[task] = source[task:].max() + 1
        task = take(gate, 1)


def _counting(cells: np.ndarray) -> Program:
    return Program([(_count.address, np.array([cells.ctypes.data, len(cells)]).tobytes())])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_task_is_done_once_and_before_run_returns(size: int) -> None:
    team = Team(size)
    for n in [1, 2, 3, 100, 5000] * 40:
        cells = np.zeros(n, dtype=np.int64)
        team.run(_counting(cells))
        assert np.all(cells == 1)


def test_helpers_that_fell_asleep_join_again() -> None:
    team = Team(2)
    deadline = time.monotonic() + 60
    while not team._asleep and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert team._asleep
    cells = np.zeros(20_000, dtype=np.int64)
    program, rounds = _counting(cells), 0
    while team._asleep and time.monotonic() < deadline:
        team.run(program)
        rounds += 1
    assert not team._asleep
    assert np.all(cells == rounds)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_piece_of_a_program_sees_all_that_the_one_before_did(size: int) -> None:
    team, cells = Team(size), np.zeros((301, 40), dtype=np.int64)
    at, row_bytes = cells.ctypes.data, cells.strides[0]
    pieces = [np.array([at + i * row_bytes, at + (i + 1) * row_bytes, 40]) for i in range(300)]
    program = Program([(_prefix.address, block.tobytes()) for block in pieces])
    for _ in range(20):
        cells[1:] = 0
        team.run(program)
        assert np.all(cells == np.arange(301)[:, None])


def test_a_program_forked_in_mid_run_runs_in_the_child() -> None:
    """A child has the marks of helpers that it does not have: as if two had been inside of every piece."""
    cells = np.zeros((4, 8), dtype=np.int64)
    at, row_bytes = cells.ctypes.data, cells.strides[0]
    pieces = [np.array([at + i * row_bytes, at + (i + 1) * row_bytes, 8]) for i in range(3)]
    program = Program([(_prefix.address, block.tobytes()) for block in pieces])
    program._gates.reshape(-1, GATE_BYTES // 8)[:, INSIDE // 8] = 2
    running = threading.Thread(target=Team(1).run, args=(program,), daemon=True)
    running.start()
    running.join(60)
    assert not running.is_alive()
    assert np.all(cells == np.arange(4)[:, None])


def test_recorded_jobs_run_later_in_order_and_again() -> None:
    job = Job(_prefix, "qqq")
    a, b = np.zeros(5, dtype=np.int64), np.zeros(5, dtype=np.int64)

    def there_and_back() -> None:
        job(a.ctypes.data, b.ctypes.data, 5)
        job(b.ctypes.data, a.ctypes.data, 5)

    program = record(there_and_back)
    assert not a.any()
    for times in range(1, 4):
        program.run()
        assert np.all(a == 2 * times)
    job(a.ctypes.data, b.ctypes.data, 5)  # nothing is recorded any more
    assert np.all(b == 7)


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

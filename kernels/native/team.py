"""A team of threads that share one piece of work at a time.

OpenMP is not used: torch and Numba each bring a copy of it, whose idle threads would spin against each
other. Work is a compiled function that takes tasks from a shared counter until there are none. The
caller is a member of the team and waits only for members that hold a task, so a thread that the system
has not let run does not hold up the rest. Idle helpers spin for IDLE_SPINS turns, giving way to others,
then sleep until the next call.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..threads import usable_cores
from .jit import jit

# Places in the control block; each int64 has a cache line of its own.
OPEN, INSIDE, TAKEN, WORK, ARGUMENTS = (8 * 8 * i for i in range(5))
IDLE_SPINS = 4000  # about 2 ms
LOOKS = 64  # between two turns given to other threads

_I64 = ir.IntType(64)
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _load(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def _store(typing_context: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at `address`; returns what was there before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _call(typing_context: Any, function: Any, control: Any, arguments: Any) -> Any:
    """Calls the compiled function at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64]).as_pointer()
        builder.call(builder.inttoptr(args[0], kind), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@jit()
def take(control: int, count: int) -> int:
    """First of the next `count` tasks; tasks are numbered from 0 and the worker stops at its last."""
    return _add(control + TAKEN, count)


@jit()
def _lead(control: int, turn: int, work: int, arguments: int) -> None:
    """Opens the work to the team, joins in, and waits for members still inside."""
    _store(control + TAKEN, 0)
    _store(control + WORK, work)
    _store(control + ARGUMENTS, arguments)
    _store(control + OPEN, turn)
    _call(work, control, arguments)
    _store(control + OPEN, 0)
    looks = 0
    while _load(control + INSIDE) != 0:
        looks += 1
        if looks % LOOKS == 0:
            _sched_yield()


@jit()
def _help(control: int, seen: int) -> int:
    """Joins every piece of work newer than `seen` until there was none for a while; returns the last one."""
    spins = 0
    while spins < IDLE_SPINS:
        turn = np.int64(0)
        for _ in range(LOOKS):
            turn = _load(control + OPEN)
            if turn != 0 and turn != seen:
                break
        if turn == 0 or turn == seen:
            spins += 1
            _sched_yield()
            continue
        _add(control + INSIDE, 1)
        if _load(control + OPEN) == turn:  # else it closed meanwhile, and its arguments may be gone
            _call(_load(control + WORK), control, _load(control + ARGUMENTS))
        _add(control + INSIDE, -1)
        seen = turn
        spins = 0
    return seen


class Team:
    """The threads of this process. `lock` is held by whoever runs something on it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self._memory = np.zeros(6 * 8, dtype=np.int64)
        self._control = self._memory.ctypes.data
        self._turn = 0
        self._wake = [threading.Event() for _ in range(size - 1)]
        self._asleep: set[threading.Event] = set()
        for event in self._wake:
            threading.Thread(target=self._helper, args=(event,), name="camshaft-team", daemon=True).start()

    def run(self, work: int, arguments: int) -> None:
        """Runs the compiled function at `work` with the arguments block on every member; returns when done."""
        self._turn += 1
        if self._asleep:
            for event in self._wake:
                event.set()
        _lead(self._control, self._turn, work, arguments)

    def _helper(self, event: threading.Event) -> None:
        seen = 0
        while True:
            self._asleep.add(event)
            event.wait()
            self._asleep.discard(event)
            event.clear()
            seen = _help(self._control, seen)


@functools.cache
def team() -> Team:
    """The process's team, made when first asked for."""
    return Team(usable_cores())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=team.cache_clear)  # threads do not survive a fork


class Job:
    """Compiled work and the block its arguments are written to.

    `work` was made by `worker`; `layout` is the `struct` format of its arguments, q (int64) or d (float64) each.
    """

    def __init__(self, work: Any, layout: str) -> None:
        self._work = work
        self._struct = struct.Struct("=" + layout)
        self._block = np.zeros(len(layout), dtype=np.int64)
        self._arguments = self._block.ctypes.data

    def __call__(self, *arguments: float) -> None:
        """Runs the work with these arguments on the process's team; returns when it is done."""
        members = team()
        with members.lock:
            self._struct.pack_into(self._block, 0, *arguments)
            members.run(self._work.address, self._arguments)

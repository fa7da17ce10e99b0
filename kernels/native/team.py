"""A team of threads that share the work of a program: one piece after the other, each cut into tasks.

OpenMP is not used: torch and Numba each bring a copy of it, whose idle threads would spin against each
other. A piece of work is a compiled function that takes tasks from the piece's counter until there are none.
Each member passes through the pieces by itself and waits, by `ready`, only for members that still hold a
task of the piece before, so a thread that the system has not let run does not hold up the rest. The caller
is a member. Idle helpers spin for IDLE_SPINS turns, giving way to others, then sleep until the next call.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from ..threads import usable_cores
from .jit import jit
from .vector import pointer

# Places in a team's control block; each int64 has a cache line of its own.
OPEN, MEMBERS, PIECES, GATES, LENGTH = (8 * 8 * i for i in range(5))
# Places in the gate of a piece of work, likewise. The gate of the piece before lies in front of it.
TAKEN, INSIDE = 0, 8 * 8
GATE_BYTES = 2 * 8 * 8
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
def take(gate: int, count: int) -> int:
    """First of the next `count` tasks; tasks are numbered from 0 and the worker stops at its last."""
    return _add(gate + TAKEN, count)


@jit()
def is_last(counter: int, count: int) -> bool:
    """Counts a part as done, in the int64 at an address; true for the last of `count`, who sees what all have written
    and leaves the counter at 0.
    """
    if _add(counter, 1) != count - 1:
        return False
    _store(counter, 0)
    return True


@jit()
def is_ready(gate: int) -> bool:
    """Whether every task of the pieces before this one is done. A piece must have one task at least."""
    return _load(gate - GATE_BYTES + INSIDE) == 0


@jit()
def ready(gate: int) -> None:
    """Waits for the pieces before this one. Until it returns, their outputs may not be read and their inputs not overwritten."""
    looks = 0
    while not is_ready(gate):
        looks += 1
        if looks % LOOKS == 0:
            _sched_yield()


@jit()
def _walk(pieces: int, gates: int, length: int) -> None:
    """Passes through a program, at each piece until it has no task left."""
    for i in range(length):
        piece, gate = carray(pointer(pieces + i * 16), (2,), np.int64), gates + (i + 1) * GATE_BYTES
        _add(gate + INSIDE, 1)
        _call(piece[0], gate, piece[1])
        _add(gate + INSIDE, -1)


@jit()
def _lead(control: int, turn: int, pieces: int, gates: int, length: int) -> None:
    """Opens a program to the team, joins in, and waits for members still inside."""
    for i in range(length + 1):
        _store(gates + i * GATE_BYTES + TAKEN, 0)
        _store(gates + i * GATE_BYTES + INSIDE, 0)  # a fork in mid-run leaves the child its helpers' marks
    _store(control + PIECES, pieces)
    _store(control + GATES, gates)
    _store(control + LENGTH, length)
    _store(control + OPEN, turn)
    _walk(pieces, gates, length)
    _store(control + OPEN, 0)
    looks = 0
    while _load(control + MEMBERS) != 0:
        looks += 1
        if looks % LOOKS == 0:
            _sched_yield()


@jit()
def _help(control: int, seen: int) -> int:
    """Joins every program newer than `seen` until there was none for a while; returns the last one."""
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
        _add(control + MEMBERS, 1)
        if _load(control + OPEN) == turn:  # else it closed meanwhile, and its pieces may be gone
            _walk(_load(control + PIECES), _load(control + GATES), _load(control + LENGTH))
        _add(control + MEMBERS, -1)
        seen = turn
        spins = 0
    return seen


class Program:
    """Pieces of work in the order they run in, each with one task at least.

    A piece is the address of a compiled function and its arguments, packed. Whoever makes a program keeps
    alive what the arguments point to.
    """

    def __init__(self, pieces: list[tuple[int, bytes]]) -> None:
        works, blocks = [work for work, _ in pieces], [block for _, block in pieces]
        self._arguments = np.frombuffer(bytearray(b"".join(blocks)), dtype=np.int64)
        begins = np.cumsum([0, *map(len, blocks)])[:-1] + self._arguments.ctypes.data
        self._pieces = np.stack([np.asarray(works, dtype=np.int64), begins], axis=1)
        self._gates = np.zeros((len(pieces) + 1) * GATE_BYTES // 8, dtype=np.int64)
        self.addresses = self._pieces.ctypes.data, self._gates.ctypes.data, len(pieces)

    def set_arguments(self, layout: struct.Struct, *arguments: float) -> None:
        """Overwrites those of the first piece."""
        layout.pack_into(self._arguments.data, 0, *arguments)

    def run(self) -> None:
        """Runs it on the process's team; returns when all is done."""
        members = team()
        with members.lock:
            members.run(self)


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

    def run(self, program: Program) -> None:
        """Runs a program on every member; returns when done."""
        self._turn += 1
        if self._asleep:
            for event in self._wake:
                event.set()
        _lead(self._control, self._turn, *program.addresses)

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


class _Recorder(threading.local):
    """What this thread writes down instead of running it, if it does."""

    pieces: list[tuple[int, bytes]] | None = None


_recorder = _Recorder()


def record(call: Callable[[], object]) -> Program:
    """The jobs that `call` asks for, written down in order instead of run; all else that it does is done once."""
    pieces = _recorder.pieces = []
    try:
        call()
    finally:
        _recorder.pieces = None
    return Program(pieces)


class Job:
    """Compiled work and how its arguments are laid out.

    `work` was made by `worker`; `layout` is the `struct` format of its arguments, q (int64) or d (float64) each.
    """

    def __init__(self, work: Any, layout: str) -> None:
        self._work = work
        self._layout = struct.Struct("=" + layout)
        self._program = Program([(work.address, bytes(self._layout.size))])

    def __call__(self, *arguments: float) -> None:
        """Runs the work with these arguments on the process's team, and returns when it is done; or records it."""
        if _recorder.pieces is not None:
            _recorder.pieces.append((self._work.address, self._layout.pack(*arguments)))
            return
        members = team()
        with members.lock:
            self._program.set_arguments(self._layout, *arguments)
            members.run(self._program)

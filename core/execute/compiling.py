"""Tells that kernels are being compiled for this processor: many seconds, once, and then kept on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event

STAGE = "compiling kernels for this processor, once"


class Compilations(event.Listener):
    """Counts what Numba compiles; what it finds on disk does not count."""

    def __init__(self, progress: Callable[[str, int, int], None]) -> None:
        """progress: told of each one that begins, as `progress(stage, number, 0)`."""
        self._progress = progress
        self._depth = 0
        self._first_s = self._last_s = 0.0
        self.count = 0

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        return self._last_s - self._first_s

    def on_start(self, event: event.Event) -> None:
        if not self._depth:
            self._first_s = self._first_s or time.monotonic()
            self.count += 1
            self._progress(STAGE, self.count, 0)
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        self._last_s = time.monotonic()


@contextmanager
def compiling(progress: Callable[[str, int, int], None]) -> Iterator[Compilations]:
    """Tells `progress(stage, number, 0)` of each kernel that is compiled inside."""
    watch = Compilations(progress)
    event.register("numba:compile", watch)
    try:
        yield watch
    finally:
        event.unregister("numba:compile", watch)

"""Tells that kernels are being compiled for this processor: many seconds, once, and then kept on disk."""

from __future__ import annotations

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
        self.count = 0

    def on_start(self, event: event.Event) -> None:
        if not self._depth:
            self.count += 1
            self._progress(STAGE, self.count, 0)
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1


def watch_compiler(progress: Callable[[str, int, int], None]) -> Compilations:
    """Tells `progress(stage, number, 0)` of each kernel that is compiled from now on."""
    watch = Compilations(progress)
    event.register("numba:compile", watch)
    return watch


@contextmanager
def compiling(progress: Callable[[str, int, int], None]) -> Iterator[Compilations]:
    """Tells `progress(stage, number, 0)` of each kernel that is compiled inside."""
    watch = watch_compiler(progress)
    try:
        yield watch
    finally:
        event.unregister("numba:compile", watch)

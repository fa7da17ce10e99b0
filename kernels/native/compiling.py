"""Tells that kernels are being compiled for this processor: many seconds, once, and then kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from numba.core.event import Event, Listener, install_listener, register

COMPILING = "compiling kernels for this processor, once"
_KIND = "numba:compile"  # not sent for what Numba finds on disk


class _Once(Listener):
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, False

    def on_start(self, event: Event) -> None:
        if not self._told:
            self._told = True
            self._tell(COMPILING)

    def on_end(self, event: Event) -> None:
        pass


def watch_compiler(tell: Callable[[str], None]) -> None:
    """Has `tell` called with `COMPILING` when the first kernel from now on begins to be compiled."""
    register(_KIND, _Once(tell))


def compiling(tell: Callable[[str], None]) -> AbstractContextManager[Any]:
    """Inside, `tell` is called with `COMPILING` when the first kernel begins to be compiled."""
    return install_listener(_KIND, _Once(tell))

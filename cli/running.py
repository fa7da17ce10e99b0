"""How far a run of requests is, on standard error: a bar where somebody watches, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

EVERY_S = 20.0  # between lines


class Lines:
    """Says when a run begins, and every EVERY_S how many requests have ended and tokens come out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name, self._total = "", 0
        self._started_s = self._told_s = clock()

    def begin(self, name: str, total: int) -> Lines:
        """A run of so many requests begins, under a name."""
        self._name, self._total = name, total
        self._started_s = self._told_s = self._clock()
        self.say(f"{name}: {total:,} requests ...")
        return self

    def __call__(self, ended: int, tokens: int) -> None:
        now = self._clock()
        if now - self._told_s >= EVERY_S:
            self._told_s = now
            self.say(
                f"{self._name}: {ended:,} of {self._total:,} requests, {tokens:,} tokens, {now - self._started_s:.0f} s"
            )

    def say(self, text: str) -> None:
        """One line."""
        click.echo(text, err=True)


class Bar:
    """The same as a bar of rich; what is said stands above it."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task: Any = None
        self._name = ""

    def begin(self, name: str, total: int) -> Bar:
        """The bar from its start, under a name."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task, self._name = self._bar.add_task(name, total=total), name
        return self

    def __call__(self, ended: int, tokens: int) -> None:
        self._bar.update(self._task, completed=ended, description=f"{self._name} ({tokens:,} tokens)")

    def say(self, text: str) -> None:
        """One line."""
        self._bar.console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def running() -> Iterator[Bar | Lines]:
    """Progress of runs, as it can be shown here."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Bar(bar)

"""How far a command is, on standard error: a bar where somebody watches, else lines; standard output is the answer's.

`stages` is for a long job of several stages, `running` for runs of requests.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY_S = 20.0  # between lines


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage of a long job, or a line for each where nobody watches (a log file, a container).

    Yields `progress(stage, done, total)`; a total of 0 is unknown.
    """
    with _bars() if sys.stderr.isatty() else nullcontext(_lines()) as progress:
        yield progress


@contextmanager
def opening(tell: Callable[[str], None], *, on_cpu: bool) -> Iterator[None]:
    """While an engine opens in this process: `tell` is told once if kernels are compiled then, which takes long."""
    if not on_cpu:
        yield
        return
    from ..kernels.native.compiling import compiling

    with compiling(tell):
        yield


def _lines() -> Callable[[str, int, int], None]:
    told: set[str] = set()

    def progress(stage: str, done: int, total: int) -> None:
        if stage not in told:
            told.add(stage)
            click.echo(f"{stage} ...", err=True)

    return progress


def _progress(told: str) -> Progress:
    """A bar that `with` shows; `told` stands beside it: a column of rich's."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        getattr(progress, told)(),
    )
    return progress.Progress(
        *columns, progress.TimeElapsedColumn(), console=Console(stderr=True), transient=True
    )


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    with _progress("TaskProgressColumn") as bar:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=total or None)

        yield progress


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
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def running() -> Iterator[Bar | Lines]:
    """Progress of runs, as it can be shown here."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    with _progress("MofNCompleteColumn") as bar:
        yield Bar(bar)

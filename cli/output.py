"""What commands share on their way out: mistakes told in a line with their exit status, and files that can be written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


@contextmanager
def user_errors() -> Iterator[None]:
    """Ends the command with one line: status 2 for what was asked for wrongly, 1 for what cannot be done.

    Wrong are a configuration, and names and files that are given: a device, a model, a log.
    """
    from ..core.errors import CamshaftError, ConfigError, EvidenceError, ModelError

    try:
        yield
    except CamshaftError as error:
        mistake = isinstance(error, ConfigError | EvidenceError | ModelError)
        raise (_Mistake if mistake else click.ClickException)(str(error)) from error


class _Mistake(click.ClickException):
    exit_code = 2


def output_option(name: str, text: str) -> Callable[[Any], Any]:
    """An option that names a file to write: a Path or None, refused before any work where it cannot be written."""

    def refuse(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
        if path is not None:
            require_writable(path, name)
        return path

    return click.option(name, type=click.Path(path_type=Path), callback=refuse, help=text)


def require_writable(path: Path, option: str) -> None:
    """Refuses a file that cannot be written, before any work. Folders that are missing count as wrong.

    Raises click.UsageError.
    """
    folder = path.parent
    if path.is_dir():
        raise click.UsageError(f"{option} {path}: is a folder; a file is needed")
    if not folder.is_dir():
        raise click.UsageError(f"{option} {path}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise click.UsageError(f"{option} {path}: may not be written")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While a file is written: a full disk and the like end the command with one line, and status 1."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Writes a file, or ends the command with one line."""
    with writing(path):
        path.write_text(text, encoding="utf-8")

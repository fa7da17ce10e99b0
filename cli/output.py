"""What commands share on their way out: mistakes told in a line with their exit status, and files that can be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        failure = click.ClickException(str(error))
        failure.exit_code = 2 if isinstance(error, ConfigError | EvidenceError | ModelError) else 1
        raise failure from error


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


def write_text(path: Path, text: str) -> None:
    """Writes a file; a full disk and the like end the command with one line."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from error

"""What commands share on their way out: text as wide as the terminal, mistakes told in a line with their exit status,
files that can be written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 100  # columns where nobody says how many there are


def width() -> int:
    """Columns of the terminal: COLUMNS, else the terminal's own, else PIPED_WIDTH."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def console() -> Console:
    """Where tables are printed, as wide as all other text; brackets in a text are text."""
    from rich.console import Console

    return Console(width=width(), markup=False)


def echo(text: str, *, err: bool = False, comment: bool = False) -> None:
    """Prints text folded to the terminal. comment: what hangs over is a comment of YAML."""
    lines = [part for line in text.split("\n") for part in fold(line, width(), comment)]
    click.echo("\n".join(lines), err=err)


def fold(line: str, columns: int, comment: bool = False) -> list[str]:
    """A line in lines of so many columns, between words; what hangs over stands below the line's last column of text.

    Two spaces begin a column of text, `#` a comment. A longer word stays whole.
    """
    if len(line) <= columns:
        return [line]
    indent = len(line) - len(line.lstrip())
    starts = [match.end() for match in re.finditer(r"(?<=\S) {2,}(?=\S)", line)]
    hang = max((start for start in starts if start <= columns // 2), default=indent + 2)
    below = " " * hang
    if comment and (mark := line.find("# ")) >= 0:
        if mark > max(columns - 24, columns // 3):  # too little room beside the value
            return [line[:mark].rstrip(), *fold(" " * (columns // 3) + line[mark:], columns, comment)]
        below = " " * mark + "# "
    return textwrap.wrap(
        line.lstrip(),
        columns,
        initial_indent=" " * indent,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = False) -> None:
    """Rows in columns; those for which the terminal is too narrow stand below their row by name, where not empty.

    figures: all columns but the first hold figures, and end on one line.
    """
    widths = [max(len(row[place]) for row in [header, *rows]) for place in range(len(header))]
    fits = next((n for n in range(len(widths), 1, -1) if sum(widths[:n]) + 2 * (n - 1) <= width()), 1)
    for row in [header, *rows]:
        placed = [
            cell.rjust(wide) if figures and place else cell.ljust(wide)
            for place, (cell, wide) in enumerate(zip(row[:fits], widths, strict=False))
        ]
        echo("  ".join(placed).rstrip())
        told = [f"{name}: {cell}" for name, cell in zip(header[fits:], row[fits:], strict=True) if cell]
        if told and row is not header:
            echo(f"    {'; '.join(told)}")


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


format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)


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
    if os.path.isdir(path):
        raise click.UsageError(f"{option} {path}: is a folder; a file is needed")
    if not os.path.isdir(folder):
        raise click.UsageError(f"{option} {path}: there is no folder {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise click.UsageError(f"{option} {path}: may not be written")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While a file is written: a full disk and the like end the command with one line, and status 1."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from error


def write_json(path: Path | None, document: dict[str, Any]) -> None:
    """Writes a document to the file that was asked for, if one was."""
    if path is not None:
        write_text(path, json.dumps(document, indent=2))


def write_text(path: Path, text: str) -> None:
    """Writes a file, or ends the command with one line."""
    with writing(path):
        path.write_text(text, encoding="utf-8")

"""Jupyter notebooks: code cells as one Python script, `!` lines and `%%bash` cells as shell text.

Every line of a cell stands at the line of the file that holds it, where the file has one line for each.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from .base import SERVER, Configuration, Source, UnreadableInput
from .python import read_python
from .scripts import read_commands

# A line of IPython's own, which may go on behind a backslash: `!ls`, `%pip install x`, `names = !ls`.
OWN = re.compile(r"(\s*(?:\w[\w.,\[\] ]*=\s*)?)(!+|%+(?=[A-Za-z]))")
# A Python expression in such a line, which JSON is not: to the shell it is as good as a command's output.
INSERTED = re.compile(r"(?<![{$])\{([^{}\s\"':][^{}:]{0,200})\}(?!\})")
# What IPython itself makes of such a line begins like this; to the reader it is a value that nobody can know.
STANDS_FOR = "get_ipython()"


def read_notebook(source: Source, label: str) -> list[Configuration]:
    """The engines and servers that a notebook starts. Raises UnreadableInput for what is no notebook."""
    script: list[str] = []
    shell: list[str] = []
    unread: list[str] = []
    offset = 0
    for number, cell in _cells(source):
        offset = max(offset, source.text.find(json.dumps(cell[0])[:-1], offset))
        at = source.text.count("\n", 0, offset)
        if cell[0].startswith(("%%bash", "%%sh", "%%script bash")):
            _put(shell, at + 1, cell[1:])
            continue
        code, commands = (cell, []) if _parses(cell) else _split(cell)
        _put(shell, at, commands)
        if _parses(code):
            _put(script, at, code)
        else:
            unread.append(str(number))
    found = read_python(Source(source.name, "\n".join(script)), label)
    text = "\n".join(shell)
    if SERVER.search(text):
        found += read_commands(Source(source.name, text), label)
    for configuration in found:
        configuration.editable = False
        if unread:
            cells = f"code cell{'s' if len(unread) > 1 else ''} {', '.join(unread)}"
            configuration.notes.append(f"not read, as no Python: {cells}")
        if len(found) > 1:
            configuration.label = f"{label}:{configuration.start_place.line}"
    return found


def _cells(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Each code cell that is not empty: which one it is of all code cells, and its lines."""
    try:
        cells = json.loads(source.text)["cells"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnreadableInput(f"{source.name} is no notebook: expected JSON with `cells`") from None
    number = 0
    for cell in cells if isinstance(cells, list) else []:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            number += 1
            text = cell.get("source")
            text = "".join(map(str, text)) if isinstance(text, list) else str(text or "")
            if text.strip():
                yield number, text.split("\n")


def _split(cell: list[str]) -> tuple[list[str], list[str]]:
    """A cell's Python and its shell text, line by line; each has blanks where the other stands."""
    code: list[str] = []
    shell: list[str] = []
    mark = ""
    for line in cell:
        match = None if mark else OWN.match(line)
        command = line
        if match is not None:
            mark, command = match.group(2), line[match.end() :]
            code.append(match.group(1) + STANDS_FOR)
        else:
            code.append("" if mark else line)
        shell.append(INSERTED.sub(r"$(\1)", command.strip()) if mark.startswith("!") else "")
        if not line.rstrip().endswith("\\"):
            mark = ""
    return code, shell


def _put(lines: list[str], at: int, more: list[str]) -> None:
    lines += [""] * (at - len(lines))
    lines += more


def _parses(code: list[str]) -> bool:
    try:
        ast.parse("\n".join(code))
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True

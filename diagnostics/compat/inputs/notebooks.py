"""Jupyter notebooks: code cells as one Python script, `!` lines and `%%bash` cells as shell text.

Every line of a cell stands at the line of the file that holds it, where the file has one line for each.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from .base import SERVER, Configuration, Source, UnreadableInput
from .commands import read_commands
from .python import read_python


def read_notebook(source: Source, label: str) -> list[Configuration]:
    """The engines and servers that a notebook starts. Raises UnreadableInput for what is no notebook."""
    script: list[str] = []
    shell: list[str] = []
    offset = 0
    for cell in _cells(source):
        offset = max(offset, source.text.find(json.dumps(cell[0])[:-1], offset))
        at = source.text.count("\n", 0, offset)
        magic = cell[0].startswith(("%%bash", "%%sh", "%%script bash"))
        commands = [line[1:] if line.lstrip().startswith("!") else "" for line in cell]
        _put(shell, at, cell[1:] if magic else [c.strip() for c in commands], skip=int(magic))
        code = ["" if line.lstrip().startswith(("!", "%")) else line for line in cell]
        if not magic and _parses("\n".join(code)):
            _put(script, at, code)
    found = read_python(Source(source.name, "\n".join(script)), label)
    text = "\n".join(shell)
    if SERVER.search(text):
        found += read_commands(Source(source.name, text), label)
    for configuration in found:
        configuration.editable = False
        if len(found) > 1:
            configuration.label = f"{label}:{configuration.start_place.line}"
    return found


def _cells(source: Source) -> Iterator[list[str]]:
    """The lines of each code cell."""
    try:
        cells = json.loads(source.text)["cells"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnreadableInput(f"{source.name} is no notebook: expected JSON with `cells`") from None
    for cell in cells if isinstance(cells, list) else []:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            text = cell.get("source")
            text = "".join(map(str, text)) if isinstance(text, list) else str(text or "")
            if text.strip():
                yield text.split("\n")


def _put(lines: list[str], at: int, more: list[str], skip: int = 0) -> None:
    lines += [""] * (at + skip - len(lines))
    lines += more


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True

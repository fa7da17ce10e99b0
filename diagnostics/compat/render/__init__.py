"""The same results as text, JSON, SARIF, GitHub annotations or Markdown."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ..checks.findings import Result

# Format name -> the module beside this one that renders it.
FORMATS = {
    "text": "text",
    "json": "structured",
    "sarif": "sarif",
    "github": "github",
    "markdown": "markdown",
}


def render(form: str, results: Sequence[Result], width: int = 100) -> str:
    """The results in one of FORMATS; text in lines of so many columns."""
    room = importlib.import_module(f".{FORMATS[form]}", __package__)
    return room.render(results, width) if form == "text" else room.render(results)

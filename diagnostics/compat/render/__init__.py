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


def render(form: str, results: Sequence[Result]) -> str:
    """The results in one of FORMATS."""
    return importlib.import_module(f".{FORMATS[form]}", __package__).render(results)

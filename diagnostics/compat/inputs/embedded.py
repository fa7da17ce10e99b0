"""Texts inside texts: manifests in here-documents, YAML in YAML. Each keeps its place in the whole.

A part is read from a copy of the whole in which everything else is blank, so that every offset stays true.
"""

from __future__ import annotations

import re

# What begins a manifest, a compose file or the configuration of a serving framework.
MANIFEST = re.compile(
    r"^[ \t-]*(?:apiVersion|applications|engine_kwargs|llm_configs|services|servingEngineSpec):", re.M
)


def only(text: str, start: int, end: int) -> str:
    """The text with blanks for everything outside `start:end`; its lines stay where they are."""
    return _blank(text[:start]) + text[start:end] + _blank(text[end:])


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def block_scalar(text: str, start: int, end: int) -> str | None:
    """The lines of a literal block scalar (`key: |`) that stands at `start:end`, alone; None for other scalars."""
    head = text.find("\n", start, end)
    return only(text, head, end) if head > 0 and text[start] == "|" else None

"""How findings put names and lists into words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def shortened(choices: Iterable[Any]) -> str:
    """The choices in one line, the first twelve of many."""
    words = [str(choice) for choice in choices]
    return ", ".join(words[:12]) + (", ..." if len(words) > 12 else "")


def close_to(name: str, known: Iterable[Any], cutoff: float = 0.6) -> str | None:
    """The name that a misspelled one was most likely meant to be."""
    found = difflib.get_close_matches(name, map(str, known), n=1, cutoff=cutoff)
    return found[0] if found else None


def instead(name: str, choices: Iterable[Any], misspelled: bool = True) -> str:
    """What to write for a value that is none of the choices; one that was a choice once is not `misspelled`."""
    choices = list(choices)
    near = close_to(name, choices) if misspelled else None
    return f"Did you mean {near!r}?" if near else f"Use one of {shortened(choices)}."

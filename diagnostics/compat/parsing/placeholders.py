"""What stands in a text for a value that only a run, a template or a reader puts there: `$N`, `{{ .Values.n }}`, `<N>`."""

from __future__ import annotations

import re
from typing import Any

from ..facts.unknown import Unknown, unknown

_VARIABLE = r"\$\{[^{}]+\}|\$\([^()]+\)|\$\w+|\{\{.{0,1000}?\}\}|`[^`]+`"
_PLACEHOLDER = re.compile(rf"{_VARIABLE}|<[A-Za-z][\w .:/-]*>", re.S)
# In a text that says more than that, a word in angle brackets may be a token (`<think>`).
_PART = re.compile(_VARIABLE, re.S)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)


def is_placeholder(text: str) -> bool:
    """Whether a text is a placeholder and nothing else."""
    return _PLACEHOLDER.fullmatch(text) is not None


def holds_placeholder(text: str) -> bool:
    """Whether a text holds a placeholder."""
    return _PLACEHOLDER.search(text) is not None


def quoted(text: str) -> str:
    """A JSON text, placeholders that stand outside its strings made strings."""
    outside = re.compile(f"{_STRING.pattern}|({_PLACEHOLDER.pattern})", re.S)
    return outside.sub(lambda found: f'"{found[1]}"' if found[1] else found[0], text)


def opened(value: Any) -> Any:
    """A value read from JSON, each text with a placeholder in it made unknown, named by what it says."""
    if isinstance(value, dict):
        return {key: opened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [opened(item) for item in value]
    is_open = isinstance(value, str) and (is_placeholder(value) or _PART.search(value) is not None)
    return unknown(value, given=True) if is_open else value


def is_open(value: Any) -> bool:
    """Whether a value, or a part of it, is unknown."""
    if isinstance(value, dict):
        return any(map(is_open, value.values()))
    return isinstance(value, Unknown) or (isinstance(value, list) and any(map(is_open, value)))

"""What stands in a text for a value that only a run, a template or a reader puts there: `$N`, `{{ .Values.n }}`, `<N>`."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec

from ..facts.unknown import Unknown, unknown

_VARIABLE = r"\$\{[^{}]+\}|\$\([^()]+\)|\$\w+|\{\{.{0,1000}?\}\}|`[^`]+`"
_PLACEHOLDER = re.compile(rf"{_VARIABLE}|<[A-Za-z][\w .:/-]*>", re.S)
# In a text that says more than that, a word in angle brackets may be a token (`<think>`).
_PART = re.compile(_VARIABLE, re.S)
# A string of JSON, or a placeholder outside of one.
_OUTSIDE = re.compile(rf'"(?:[^"\\]|\\.)*"|({_PLACEHOLDER.pattern})', re.S)


def is_placeholder(text: str) -> bool:
    """Whether a text is a placeholder and nothing else."""
    return _PLACEHOLDER.fullmatch(text) is not None


def holds_placeholder(text: str) -> bool:
    """Whether a text holds a placeholder: a variable, or a word in angle brackets that stands in no string of JSON."""
    return _PART.search(text) is not None or any(found[1] for found in _OUTSIDE.finditer(text))


def read_json(text: str) -> Any:
    """The value of a JSON text, each text in it with a placeholder made unknown, named by what it says; placeholders
    may stand without quotes as well. Raises ValueError."""
    for written in dict.fromkeys((text, _quoted(text))):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return _opened(msgspec.json.decode(written.encode("utf-8", "replace")))
    raise ValueError("not JSON")


def _quoted(text: str) -> str:
    """A JSON text, placeholders that stand outside its strings made strings."""
    return _OUTSIDE.sub(lambda found: f'"{found[1]}"' if found[1] else found[0], text)


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _opened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_opened(item) for item in value]
    is_open = isinstance(value, str) and (is_placeholder(value) or _PART.search(value) is not None)
    return unknown(value, given=True) if is_open else value


def is_open(value: Any) -> bool:
    """Whether a value, or a part of it, is unknown."""
    if isinstance(value, dict):
        return any(map(is_open, value.values()))
    return isinstance(value, Unknown) or (isinstance(value, list) and any(map(is_open, value)))


def known_part(value: Any) -> Any:
    """A value without the parts of it that are unknown."""
    if isinstance(value, dict):
        return {key: known_part(item) for key, item in value.items() if not isinstance(item, Unknown)}
    if isinstance(value, list):
        return [known_part(item) for item in value if not isinstance(item, Unknown)]
    return value

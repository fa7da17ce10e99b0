"""How the written form of a value is read: human-readable integers, JSON in a string, one name or several."""

from __future__ import annotations

import json
from typing import Any

from ..numerals import human_readable, human_readable_bytes


def not_bool(value: Any) -> Any:
    """Refuses true and false where a number is meant."""
    if isinstance(value, bool):
        raise ValueError(f"a number is needed, not {str(value).lower()}")
    return value


def countable(number: int) -> int:
    """Refuses what no counter of 64 bits holds."""
    if abs(number) >= 1 << 63:
        raise ValueError("a number below 2^63 is needed")
    return number


def human_int(value: Any) -> Any:
    """Integers as vLLM reads them: 1k is 1,000, 1K is 1,024, 25.6k is 25,600."""
    if not isinstance(value, str):
        return not_bool(value)
    number = human_readable(value)
    return value if number is None else number


def human_bytes(value: Any) -> Any:
    """A size: as `human_int`, or with its unit: 1GiB is 1,024 MiB, 1GB is 1,000 MB."""
    if not isinstance(value, str):
        return not_bool(value)
    size = human_readable_bytes(value)
    if size is None and not value.strip().lstrip("+-").isdecimal():
        raise ValueError("a size is needed, such as 2GiB, 500MB or a number of bytes")
    return value if size is None else size


def human_int_or_auto(value: Any) -> Any:
    """As `human_int`; `auto` and -1 are -1, the longest that fits."""
    if isinstance(value, str) and value.strip().lower() in ("auto", "-1"):
        return -1
    number = human_int(value)
    if number == 0:
        raise ValueError("must be at least 1, or -1 or auto for the longest that fits")
    return number


def json_mapping(value: Any) -> Any:
    """A mapping, or a string that holds one as JSON (vLLM's command-line form)."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _json(value)
    return value


def names(value: Any) -> Any:
    """One name, a list of names, or a string that holds such a list as JSON (vLLM's command-line form)."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json(value)
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(value)
    return value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error

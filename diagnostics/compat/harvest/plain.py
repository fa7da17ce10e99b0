"""Evaluated values as plain data for a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .interpret.values import EnumMember, Instance, Missing, Symbol, TypeForm, Unknown


def default_of_value(value: Any) -> Any:
    """A default as JSON-able data: an enumeration's value, `{}` for a config object, None for an absent one.

    Returns Unknown when only the running release knows it.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case EnumMember(name=name, value=inner):
            plain = default_of_value(inner)
            return plain if isinstance(plain, str | int | float | bool) else name
        case Instance():
            return {}
        case Missing():
            return None
        case Symbol(name=name):
            return None if name.endswith(("PydanticUndefined", "SUPPRESS")) else Unknown(name)
        case set() | frozenset():
            return sorted((default_of_value(item) for item in value), key=str)
        case list() | tuple():
            return [default_of_value(item) for item in value]
        case dict():
            return {str(key): default_of_value(item) for key, item in value.items()}
        case TypeForm():
            return Unknown(str(value.origin))
        case _:
            return value if isinstance(value, Unknown) else Unknown(str(value))


def choices_of(value: Any) -> list[Any] | None:
    """The choices of an option as plain values, or None when they are not known."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None
    plain = [default_of_value(item) for item in value]
    return None if any(isinstance(item, Unknown) for item in plain) else plain

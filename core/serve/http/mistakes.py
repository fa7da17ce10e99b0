"""What msgspec finds wrong with a body, in the words of those who write JSON."""

from __future__ import annotations

import re
from types import NoneType
from typing import Any, get_args, get_type_hints

_FAULT = re.compile(r"(?P<what>.*?)(?: - at `(?P<key>key` in `)?\$\.?(?P<path>[^`]*)`)?", re.DOTALL)
_TYPES = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND = re.compile(r"Expected `(?P<kind>\w+)`(?P<length> of length)? (?P<sign>>=|<=|>|<) (?P<bound>\S+)")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_GIVEN = {**_NAMES, "float": "a decimal number", "bool": "a boolean"}
_SIGNS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_MAX_PARAM_CHARS = 200


def explained(message: str, kind: type[Any]) -> tuple[str, str | None]:
    """A sentence that names the field, and the field's path (None: the body itself), of a ValidationError's text.

    kind: what the body should have been.
    """
    fault = _FAULT.fullmatch(message)
    what, path = (fault["what"], fault["path"] or "") if fault else (message, "")
    # Of a mapping msgspec names no key, for a client chose it.
    member = "a value of " if path.endswith("[...]") else "a key of " if fault and fault["key"] else ""
    path = path.removesuffix("[...]")
    missing = _MISSING.fullmatch(what)
    if missing:
        path = f"{path}.{missing[1]}".removeprefix(".")
        return f"{path} is missing", path[:_MAX_PARAM_CHARS]
    subject = f"{member}{path[:_MAX_PARAM_CHARS]}" if path else "the body"
    if what.startswith("Invalid enum value"):
        choices = " or ".join(_choices(kind, path)) or "one of the known values"
        return f"{subject} must be {choices}", path[:_MAX_PARAM_CHARS]
    return f"{subject} {_rest(what)}", path[:_MAX_PARAM_CHARS] or None


def _choices(kind: type[Any], name: str) -> list[str]:
    """The values that a field of type `Literal[...]`, or that or None, may have; none for a field of a field."""
    parts = get_args(get_type_hints(kind).get(name))
    return [str(value) for part in parts for value in get_args(part) or (part,) if value is not NoneType]


def _rest(what: str) -> str:
    types, bound = _TYPES.fullmatch(what), _BOUND.fullmatch(what)
    if types:
        wanted = [_NAMES.get(name, name) for name in types[1].split(" | ") if name != "null"]
        return f"must be {' or '.join(wanted)}, not {_GIVEN.get(types[2], types[2])}"
    if bound:
        limit = f"{_SIGNS[bound['sign']]} {bound['bound'].removesuffix('.0')}"
        if not bound["length"]:
            return f"must be {limit}"
        if limit == "at least 1":
            return "may not be empty"
        return f"must have {limit} {'characters' if bound['kind'] == 'str' else 'items'}"
    return f"is not usable: {what[:1].lower()}{what[1:]}"

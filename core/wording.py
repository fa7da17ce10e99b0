"""Parts of the sentences that complaints are made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`; did you mean X?` for the closest known name, or `otherwise`."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else otherwise


_NUMBER, _WHOLE = "a number is needed", "a whole number is needed"
_COMPLAINTS = {
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "bool_parsing": "true or false is needed",
    "bool_type": "true or false is needed",
    "string_type": "text is needed",
    "tuple_type": "a list is needed",
    "list_type": "a list is needed",
    "dict_type": "a mapping is needed",
    "model_type": "a mapping is needed",
    "model_attributes_type": "a mapping is needed",
    "missing": "is missing",
    "literal_error": "must be {expected}",
    "finite_number": "must be finite",
    "greater_than": "must be more than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "less_than": "must be less than {lt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
}


def complaint(problem: Mapping[str, Any]) -> str:
    """What pydantic finds wrong with a value, as the rest of a sentence."""
    if problem["type"] in _COMPLAINTS:
        return _COMPLAINTS[problem["type"]].format(**problem.get("ctx", {}))
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def as_given(value: Any) -> str:
    """` (given: ...)` with a value, cut where it is long."""
    text = repr(value)
    return f" (given: {text if len(text) <= 60 else text[:57] + '...'})"

"""Findings about numbers outside the bounds that a release's config objects set."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from ..parsing.parser import Use
from .context import Context
from .findings import Finding

# bound -> (what keeps it, how it is told)
BOUNDS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "above"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "below"),
}


def bound_findings(context: Context, use: Use) -> Iterator[Finding]:
    """The option's number, or those of its JSON keys, where the config object refuses them."""
    flag = use.flag
    given = [(flag.name, flag.bounds, use.value)]
    if flag.nested and isinstance(use.value, dict):
        given = [
            (f"Key {path!r} of {flag.name}", flag.nested[path].bounds, value)
            for path, value in leaves(use.value, flag.nested)
            if path in flag.nested
        ]
    for name, bounds, value in given:
        wanted = outside(bounds, value)
        if wanted is not None:
            yield Finding(
                code="FL-21",
                severity="error",
                change="choice",
                message=f"{name} is {value}; {context.target} starts only if it is {wanted}.",
                place=use.value_place,
                flags=(flag.name,),
                fix=f"Give a value {wanted}, or leave it out.",
                evidence=f"{context.target} {flag.defined or flag.evidence}",
                stops=True,
            )


def outside(bounds: Mapping[str, float], value: Any) -> str | None:
    """What a number should be (``above 0 and at most 1``), or None when it is within bounds or is no number."""
    if not bounds or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if all(BOUNDS[name][0](value, bound) for name, bound in bounds.items()):
        return None
    return " and ".join(f"{BOUNDS[name][1]} {bound:g}" for name, bound in bounds.items())


def leaves(value: dict[str, Any], known: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a JSON option, as deep as the table knows keys."""
    for key, item in value.items():
        path = f"{prefix}{key}"
        deeper = isinstance(item, dict) and any(name.startswith(path + ".") for name in known)
        if deeper:
            yield from leaves(item, known, path + ".")
        else:
            yield path, item

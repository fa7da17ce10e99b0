"""Findings about values that the release's own objects refuse, by the conditions harvested from its source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..facts.unknown import Unknown
from ..releases.table import Refusal
from ..rules import conditions, phrasing
from ..rules.records import load
from ..rules.scope import Facts, Scope
from .combinations import facts_of
from .context import Context
from .findings import Finding

PLACE = re.compile(r"(\S+\.py):(\d+)")
# How far from a refusal's line the line of a rule for the same refusal may stand.
NEAR_LINES = 6


def refusal_findings(context: Context, told: Iterable[Finding]) -> Iterator[Finding]:
    """The refusals that the given values meet, besides those that `told` has.

    Nothing is refused that would be so without any option: the release starts with its own defaults.
    """
    if not context.table.refusals:
        return
    errors = [finding for finding in told if finding.severity == "error"]
    facts = facts_of(context, context.values)
    scope = Scope(load(context.engine), context.target, facts, facts.more)
    bare = Scope(load(context.engine), context.target, replace(facts, flags={}))
    for refusal in context.table.refusals.values():
        names = sorted(conditions.names(refusal.when))
        given = [name for name in names if _is_given(facts, name)]
        if given and _holds(refusal, scope) and not _holds(refusal, bare):
            finding = _finding(context, refusal, [*given, *(n for n in names if n not in given)], scope)
            if not any(_is_same(finding, error) for error in errors):
                yield finding


def _is_given(facts: Facts, name: str) -> bool:
    value: Any = facts.flags
    for key in conditions.plain(name).split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value is not None


def _holds(refusal: Refusal, scope: Scope) -> bool:
    outcome = conditions.evaluate(refusal.when, scope)
    return not isinstance(outcome, Unknown) and bool(outcome)


def _is_told(name: str, value: Any) -> bool:
    """Whether a value says something: an option's short form that is not given does not."""
    return not isinstance(value, Unknown) and not (value is None and name.startswith("given."))


def _finding(context: Context, refusal: Refusal, names: list[str], scope: Scope) -> Finding:
    known = {name: scope(name) for name in names}
    told = {conditions.plain(name): value for name, value in known.items() if _is_told(name, value)}
    flags = tuple(dict.fromkeys(conditions.options(known)))
    first, *others = [f"{name} = {json.dumps(value, default=str)}" for name, value in told.items()]
    beside = f" while {', '.join(others)}" if others else ""
    return Finding(
        "FL-22",
        "error",
        "conflict",
        f"{context.target} does not start with {first}{beside}: it refuses {phrasing.text(refusal.when)}.",
        context.place_of(flags),
        flags,
        fix="Change one of these values." if others else "Give another value.",
        evidence=f"{context.target} {refusal.evidence}",
        stops=True,
    )


def _is_same(refused: Finding, error: Finding) -> bool:
    """Whether an error is about the same: a value of the same option, or a rule for the same lines of the source."""
    if error.code.startswith("FL-"):
        return not set(error.flags).isdisjoint(refused.flags)
    if set(refused.flags) <= set(error.flags):
        return True
    here, there = PLACE.search(refused.evidence or ""), PLACE.search(error.evidence or "")
    if here is None or there is None or here[1] != there[1]:
        return False
    return abs(int(here[2]) - int(there[2])) <= NEAR_LINES

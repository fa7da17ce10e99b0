"""Findings about the keys of JSON options: unknown, gone, not there yet, deprecated, or with a value outside the choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..parsing.parser import Use
from ..releases.dialect import evidence
from ..releases.history import Span
from ..releases.table import option_of
from .bounds import leaves
from .context import Context
from .findings import Change, Finding
from .values import choice_history, left
from .words import close_to, instead, shortened


def nested_findings(context: Context) -> Iterator[Finding]:
    """What the target's configuration objects would say about the keys given to them."""
    for use in context.parsed.uses:
        if use.flag.nested and isinstance(use.value, dict):
            for path, value in leaves(use.value, use.flag.nested):
                yield from _key(context, use, path, value)


def _key(context: Context, use: Use, path: str, value: Any) -> Iterator[Finding]:
    field = use.flag.nested.get(path)
    if field is None:
        if not any(name.startswith(path + ".") for name in use.flag.nested):
            yield _absent(context, use, path)
        return
    change = context.changes.options.get(f"{use.flag.name}.{path}")
    if field.deprecated or (change and change.is_deprecated(context.target)):
        yield Finding(
            code="FL-04",
            severity="warning",
            change="deprecated",
            message=f"Key {path!r} of {use.flag.name} is deprecated at {context.target}"
            + (f": {change.why}." if change else "."),
            place=use.value_place,
            flags=(use.flag.name,),
            fix=change.fix if change else None,
            evidence=f"{context.target} {use.flag.evidence}",
        )
    if field.choices and isinstance(value, (str, int)) and value not in field.choices:
        went = context.changes.value_gone(f"{use.flag.name}.{path}", value, context.target)
        told = f"Key {path!r} of {use.flag.name}:"
        yield left(went, use.value_place, told) if went else _choice(context, use, path, value, field.choices)


FEATURES = {
    "--compilation-config": "unknown_compilation_keys",
    "--speculative-config": "unknown_speculative_keys",
}


def _absent(context: Context, use: Use, path: str) -> Finding:
    """A key the release's configuration object does not have: refused, or ignored without a word."""
    flag = use.flag.name
    feature = FEATURES.get(flag, "unknown_keys")
    refused = getattr(context.dialect, feature) == "refused"
    spans = context.keys(flag).spans(path)
    change = context.changes.options.get(f"{flag}.{path}")
    code: str
    kind: Change
    gone = _gone(context, spans)
    later = next((span.first for span in spans if span.first > context.target), None)
    if gone is not None:
        replaced = change is not None and change.replaced
        why = f": {change.why}" if change else ""
        code, kind = ("FL-03", "replaced") if replaced else ("FL-02", "removed")
        told = f"Key {path!r} of {flag} went in {gone.gone}{why}"
        fix = change.fix if change and change.fix else f"Delete {path!r}."
    elif later is not None:
        code, kind = "FL-05", "not_available_yet"
        told = f"Key {path!r} of {flag} exists from {later} on"
        fix = f"Upgrade to {later} or later, or delete the key."
    else:
        code, kind = "FL-16", "unknown"
        told = f"{flag} has no key {path!r} at {context.target}"
        former = context.changes.options.get(option_of(path))
        meant = former.key_at(context.target) if former is not None and former.into == flag else None
        meant = meant or close_to(path, use.flag.nested)
        fix = f"Did you mean {meant!r}?" if meant else "Delete the key."
    return Finding(
        code=code,
        severity="error" if refused else "warning",
        change=kind if refused else "silently_ignored",
        message=told + ("." if refused else f"; {context.target} ignores it without a word."),
        place=use.value_place,
        flags=(flag,),
        fix=fix,
        evidence=evidence(context.engine, context.target, feature) or f"{context.target} {use.flag.evidence}",
        stops=refused,
    )


def _gone(context: Context, spans: list[Span]) -> Span | None:
    ended = [span for span in spans if span.gone is not None and span.gone <= context.target]
    return ended[-1] if ended else None


def _choice(context: Context, use: Use, path: str, value: Any, choices: list[Any]) -> Finding:
    gone, comes = context.keys(use.flag.name).choice_span(path, value, context.target)
    return Finding(
        code="FL-09",
        severity="error",
        change="choice",
        message=f"Key {path!r} of {use.flag.name} does not take {value!r} at {context.target}"
        f"{choice_history(gone, comes)}; it takes {shortened(choices)}.",
        place=use.value_place,
        flags=(use.flag.name,),
        fix=instead(str(value), choices, misspelled=gone is None),
        evidence=f"{context.target} {use.flag.evidence}",
        stops=True,
    )

"""What to do about an option that is gone or going: in words, and as edits."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ..facts.unknown import Unknown, unknown
from ..inputs.base import Entry, Word
from ..parsing.arguments import says_nothing
from ..parsing.parser import Misuse, Use
from ..parsing.placeholders import is_open, is_placeholder, read_json
from ..releases.changes import OptionChange
from ..releases.table import Field, name_of
from .context import Context
from .findings import Edit


def quoted(flag: str, values: dict[str, Any], fields: Mapping[str, Field] | None = None) -> str:
    """`flag` with a JSON value, quoted for a shell, which fills in what is open."""
    text = json_text(values, fields or {})
    if not is_open(values):
        return f"{flag} {shlex.quote(text)}"
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'{flag} "{escaped}"'


def json_text(values: dict[str, Any], fields: Mapping[str, Field]) -> str:
    """The values as JSON, what is open as it is written: in quotes where it is a text."""
    texts = {key for key, field in fields.items() if field.type in ("str", "any")}
    marked = {
        key: f"\0{_as_written(value)}\0" if key not in texts and isinstance(value, Unknown) else value
        for key, value in values.items()
    }
    return json.dumps(marked, default=_as_written).replace('"\\u0000', "").replace('\\u0000"', "")


def _as_written(value: Unknown) -> str:
    return " ".join(sorted(value.missing))


def head(spelled: str) -> str:
    return spelled.split(".", 1)[0]


def given_value(context: Context, misuse: Misuse | Use) -> Any:
    """The value of an option that the target does not know, typed as an earlier release typed it."""
    if not misuse.values:
        return True
    origin = misuse.option.origins[0]
    if isinstance(origin, Entry) and isinstance(origin.value, dict):
        return origin.value  # as it is written, whatever text the target's loader makes of it
    text = misuse.values[0].text
    name = context.options.name(head(misuse.spelled))
    record = context.options.record_before(name, context.target) if name else None
    kind = (record or {}).get("type", "str")
    if "json" in kind or text.startswith("{"):
        try:
            return read_json(text)
        except ValueError:
            return unknown("...", given=True)  # no text that could be carried over
    if misuse.values[0].opaque or is_placeholder(text):
        return unknown(text, given=True)
    try:
        return int(text) if "int" in kind else float(text) if "float" in kind else text
    except ValueError:
        return text


def remedy(context: Context, change: OptionChange, misuse: Misuse | Use) -> tuple[str, tuple[Edit, ...]]:
    """(what to do, the edits that do it) for an option that is gone or going."""
    name = misuse.flag.name if misuse.flag else context.options.name(head(misuse.spelled)) or misuse.spelled
    drop = Edit("unset", name, safe=change.safe)
    if _says_nothing(misuse):
        return "Delete it.", (Edit("unset", name),)
    if change.into and change.into in context.table.flags:
        merged = merged_values(context, change.into, misuse)
        flag = context.table.flags[change.into].name
        later = change.is_later(context.target)
        safe = change.safe and not later
        also = f" {change.fix}" if later and change.fix else ""
        fields = context.table.flags[flag].nested
        return f"Use {quoted(flag, merged, fields)}.{also}", (
            Edit("unset", name, safe=safe),
            Edit("set", flag, value=json_text(merged, fields), safe=safe, open=is_open(merged)),
        )
    if change.rename and change.rename in context.table.flags:
        fix = change.fix or f"Use {change.rename}."
        return fix, (Edit("rename", name, change.rename, safe=change.safe),)
    if change.by_value:
        chosen = change.by_value.get(str(given_value(context, misuse)))
        if chosen is None:
            return change.fix or "Delete it.", ()
        sets = tuple(Edit("set", flag, value=v, safe=change.safe) for flag, v in chosen.items())
        if all(flag in context.table.flags for flag in chosen):
            words = " ".join(f"{flag} {value}" for flag, value in chosen.items())
            return (f"Use {words}." if words else change.fix or "Delete it."), (drop, *sets)
    if change.set and all(flag in context.table.flags for flag in change.set):
        sets = tuple(Edit("set", flag, value=v, safe=change.safe) for flag, v in change.set.items())
        return change.fix or "Use " + " ".join(change.set), (drop, *sets)
    if change.unset:
        return change.fix or "Delete it.", (drop,)
    return change.fix or "Delete it.", ()


def _says_nothing(given: Misuse | Use) -> bool:
    origin = given.option.origins[0]
    return isinstance(origin, Entry) and says_nothing(origin)


def _excludes(one: Misuse | Use, other: Misuse | Use) -> bool:
    origin = one.option.origins[0]
    branched = isinstance(origin, Word) and origin.conditional
    return branched and other.spelled == one.spelled and other.option is not one.option


def merged_values(context: Context, into: str, one: Misuse | Use | None = None) -> dict[str, Any]:
    """The JSON value of `into` that all the given options that moved there amount to, with what it already holds.

    Where `one` of them stands in a branch, another branch's use of the same option has no part in it.
    """
    merged: dict[str, Any] = {}
    given = context.values.get(name_of(into))
    members: list[Misuse | Use] = [
        m for m in context.parsed.misuses if m.kind in ("unknown", "missing_value")
    ]
    members += list(context.parsed.uses)
    for member in members:
        name = member.flag.name if member.flag else context.options.name(head(member.spelled))
        change = context.changes.options.get(name or "")
        key = change.key_at(context.target) if change is not None else None
        if change is None or change.into != into or key is None:
            continue
        if _says_nothing(member) or (one is not None and _excludes(one, member)):
            continue
        value = member.value if isinstance(member, Use) else given_value(context, member)
        if isinstance(member, Use) and isinstance(value, Unknown):
            value = unknown(" ".join(v.text for v in member.values), given=True)
        merged |= change.values.get(str(value), {key: value})
    known = context.table.flags[into].nested if into in context.table.flags else {}
    if known:  # a key that this release dropped again has nowhere to go
        merged = {key: value for key, value in merged.items() if key in known}
    ordered = {key: merged[key] for key in sorted(merged, key=lambda k: k not in ("method", "model"))}
    return {**ordered, **given} if isinstance(given, dict) else ordered

"""Findings about single options: unknown, gone, going, not there yet, or with a value the release refuses."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterator
from typing import Any

from .arguments import Argument
from .changes import OptionChange
from .conditions import Unknown
from .context import Context
from .findings import Edit, Finding
from .inputs.base import Entry
from .parsing import Misuse, Use


def option_findings(context: Context) -> Iterator[Finding]:
    """Everything the target's parser would say about single options."""
    for misuse in context.parsed.misuses:
        if misuse.kind == "stray_word":
            yield _switch_value(context, misuse, _common(context, misuse))
        elif misuse.kind == "unknown":
            yield _absent(context, misuse)
        else:
            yield _refused(context, misuse)
    yield from _stray_words(context)
    seen: set[str] = set()
    for use in context.parsed.uses:
        if use.flag.deprecated and use.flag.name not in seen:
            seen.add(use.flag.name)
            yield _deprecated(context, use)
        if use.abbreviated:
            yield _abbreviated(context, use)
        yield from _value_gone(context, use)
    yield from _repeated(context)


def quoted(flag: str, values: dict[str, Any]) -> str:
    """`flag` with a JSON value, quoted for a shell."""
    return f"{flag} {shlex.quote(json.dumps(values))}"


def _absent(context: Context, misuse: Misuse) -> Finding:
    """An option that this release does not have."""
    spelled = _long(misuse.spelled)
    name = context.options.name(spelled)
    if name is None:
        return _unknown(context, misuse, spelled)
    if name in context.table.flags:
        return _spelling_absent(context, misuse, name, spelled)
    span = context.options.removed_by(name, context.target)
    if span is None:
        return _too_early(context, misuse, name, spelled)
    change = context.changes.options.get(name)
    replaced = change is not None and change.replaced and bool(_remedy(context, change, misuse)[1])
    why = f": {change.why}" if change else ""
    fix, edits = (
        _remedy(context, change, misuse) if change else ("Delete it.", (Edit("unset", name, safe=False),))
    )
    verb = "was replaced in" if replaced else "was removed in"
    return Finding(
        code="FL-03" if replaced else "FL-02",
        severity="error",
        change="replaced" if replaced else "removed",
        message=f"{_as_given(misuse, name)} {verb} {span.gone}{why}; {context.target} does not start with it.",
        place=misuse.option.place,
        flags=(name,),
        fix=fix,
        evidence=f"{span.last} {_evidence(context, name, str(span.last))}; absent from {span.gone}",
        stops=True,
        edits=edits,
    )


def _spelling_absent(context: Context, misuse: Misuse, name: str, spelled: str) -> Finding:
    """A short or negative form of an option the release has, which it takes under other spellings only."""
    flag = context.table.flags[name]
    span = context.options.removed_by(name, context.target, spelled)
    since = context.options.arrives_after(name, context.target, spelled)
    if span is not None:
        told = f"{spelled} stood for {name} until {span.last}; {context.target} does not start with it."
    else:
        told = f"{spelled} is taken from {since} on; {context.target} has only {name} and does not start with it."
    negative = spelled.startswith("--no-")
    if negative and flag.kind == "store_boolean":
        fix, edits = f"Write {name}=False.", ()
    elif negative:
        fix, edits = "Delete it; the option is off unless given.", (Edit("unset", name, safe=False),)
    else:
        fix, edits = f"Write {name}.", (Edit("rename", spelled, name),)
    return Finding(
        code="FL-03" if span is not None else "FL-05",
        severity="error",
        change="replaced" if span is not None else "not_available_yet",
        message=told,
        place=misuse.option.place,
        flags=(spelled, name),
        fix=fix,
        evidence=f"{context.target} {flag.evidence}",
        stops=True,
        edits=edits,
    )


def _long(spelled: str) -> str:
    return spelled.split(".", 1)[0]


def _as_given(misuse: Misuse | Use, name: str) -> str:
    """The option's name, with the YAML key where it was given as one."""
    origin = misuse.option.origins[0]
    if isinstance(origin, Entry) and "--" + origin.key != name:
        return f"{name} (key {origin.key!r})"
    return name


def _evidence(context: Context, name: str, version: str) -> str:
    from . import table
    from .versions import parse

    flag = table.load(context.engine, parse(version)).flags.get(name)
    return flag.evidence if flag else ""


def _unknown(context: Context, misuse: Misuse, spelled: str) -> Finding:
    near = nearest(spelled, context.table.spellings())
    hint = f"Did you mean {near}?" if near else None
    return Finding(
        code="FL-01",
        severity="error",
        change="unknown",
        message=f"{spelled} is no option of {context.engine} {context.target}, nor of any release with a table.",
        place=misuse.option.place,
        flags=(spelled,),
        fix=hint,
        evidence=f"{context.target} flag table",
        stops=True,
        edits=(Edit("rename", spelled, near, safe=False),) if near else (),
    )


def nearest(spelled: str, spellings: list[str]) -> str | None:
    """The option that looks most like a misspelled one, or None."""
    if spelled[1:] in spellings:  # --cc for -cc
        return spelled[1:]
    found = difflib.get_close_matches(spelled, spellings, n=1, cutoff=0.72)
    if found:
        return found[0]
    words = set(spelled.strip("-").split("-"))
    scored = [(len(words & set(s.strip("-").split("-"))), -len(s), s) for s in spellings]
    best = max(scored, default=(0, 0, ""))
    return best[2] if best[0] >= 2 else None


def _too_early(context: Context, misuse: Misuse, name: str, spelled: str) -> Finding:
    since = context.options.arrives_after(name, context.target)
    kept = "" if name == spelled or spelled.replace("--no-", "--") == name else f" (as {name})"
    return Finding(
        code="FL-05",
        severity="error",
        change="not_available_yet",
        message=f"{spelled}{kept} exists from {since} on; {context.target} does not start with it.",
        place=misuse.option.place,
        flags=(name,),
        fix=f"Upgrade to {since} or later, or delete it.",
        evidence=f"absent from {context.target}; {since} {_evidence(context, name, str(since))}",
        stops=True,
        edits=(Edit("unset", name, safe=False),),
    )


def _given_value(context: Context, misuse: Misuse | Use) -> Any:
    """The value of an option that the target does not know, typed as an earlier release typed it."""
    if not misuse.values:
        return True
    text = misuse.values[0].text
    name = context.options.name(_long(misuse.spelled))
    record = context.options.record_before(name, context.target) if name else None
    kind = (record or {}).get("type", "str")
    try:
        if "int" in kind:
            return int(text)
        if "float" in kind:
            return float(text)
        if "json" in kind or text.startswith("{"):
            return json.loads(text)
    except ValueError:
        return text
    return text


def _remedy(context: Context, change: OptionChange, misuse: Misuse | Use) -> tuple[str, tuple[Edit, ...]]:
    """(what to do, the edits that do it) for an option that is gone or going."""
    name = misuse.flag.name if misuse.flag else context.options.name(_long(misuse.spelled)) or misuse.spelled
    drop = Edit("unset", name, safe=change.safe)
    if change.into and change.into in context.table.flags:
        merged = merged_values(context, change.into)
        flag = context.table.flags[change.into].name
        return f"Use {quoted(flag, merged)}.", (
            drop,
            Edit("set", flag, value=json.dumps(merged), safe=change.safe),
        )
    if change.rename and change.rename in context.table.flags:
        fix = change.fix or f"Use {change.rename}."
        return fix, (Edit("rename", name, change.rename, safe=change.safe),)
    if change.by_value:
        chosen = change.by_value.get(str(_given_value(context, misuse)))
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


def merged_values(context: Context, into: str) -> dict[str, Any]:
    """The JSON value of `into` that all the given options that moved there amount to, with what it already holds."""
    merged: dict[str, Any] = {}
    given = context.values.get(into.lstrip("-").replace("-", "_"))
    members: list[Misuse | Use] = [m for m in context.parsed.misuses if m.kind == "unknown"]
    members += list(context.parsed.uses)
    for member in members:
        name = member.flag.name if member.flag else context.options.name(_long(member.spelled))
        change = context.changes.options.get(name or "")
        if change is None or change.into != into or change.key is None:
            continue
        value = member.value if isinstance(member, Use) else _given_value(context, member)
        if isinstance(value, Unknown):
            value = " ".join(v.text for v in member.values)
        merged |= change.values.get(str(value), {change.key: value})
    ordered = {key: merged[key] for key in sorted(merged, key=lambda k: k not in ("method", "model"))}
    return {**ordered, **given} if isinstance(given, dict) else ordered


def _deprecated(context: Context, use: Use) -> Finding:
    name = use.flag.name
    change = context.changes.options.get(name)
    since = context.options.deprecated_since(name, context.target) or context.target
    gone = context.options.goes_after(name, context.target)
    when = f" and is removed in {gone}" if gone else ""
    why = f": {change.why}" if change else ""
    fix, edits = _remedy(context, change, use) if change else (_first_sentence(use.flag.deprecated or ""), ())
    return Finding(
        code="FL-04",
        severity="warning",
        change="deprecated",
        message=f"{_as_given(use, name)} is deprecated since {since}{when}{why}.",
        place=use.option.place,
        flags=(name,),
        fix=fix or None,
        evidence=f"{context.target} {use.flag.evidence}",
        edits=edits,
    )


def _first_sentence(text: str) -> str:
    cleaned = " ".join(text.split())
    return cleaned if len(cleaned) <= 200 else cleaned[:197] + "..."


def _refused(context: Context, misuse: Misuse) -> Finding:
    """A value, or its absence, that the target's parser refuses."""
    flag = misuse.flag
    name = flag.name if flag else misuse.spelled
    given = " ".join(value.text for value in misuse.values)
    common = _common(context, misuse)
    if misuse.kind == "ambiguous":
        options = ", ".join(sorted(set(misuse.candidates)))
        return Finding(
            code="FL-12",
            change="value_syntax",
            message=f"{misuse.spelled} is ambiguous at {context.target}: it could be {options}.",
            fix="Write the option in full.",
            **common,
        )
    if misuse.kind == "missing_value" or flag is None:
        return Finding(
            code="FL-11",
            change="value_syntax",
            message=f"{name} needs a value at {context.target} and has none.",
            fix=f"{name} VALUE",
            **common,
        )
    if misuse.kind == "explicit_value":
        return _switch_value(context, misuse, common)
    gone = context.changes.value_gone(name, given, context.target)
    if gone is not None:
        return _left(
            gone.flag, given, gone.why, gone.gone, gone.fix, gone.rename, common | {"evidence": gone.evidence}
        )
    if misuse.kind == "bad_choice":
        return _bad_choice(context, misuse, given, common)
    return Finding(
        code="FL-08",
        change="value_syntax",
        message=f"{name} does not take {given!r} at {context.target}: {misuse.detail}.",
        fix=f"Give a value of type {flag.type}.",
        **common,
    )


def _common(context: Context, misuse: Misuse) -> dict[str, Any]:
    """What every finding about a refused value has in common."""
    flag = misuse.flag
    return {
        "severity": "error",
        "place": misuse.option.place,
        "flags": (flag.name if flag else misuse.spelled,),
        "evidence": f"{context.target} {flag.evidence}" if flag else f"{context.target} flag table",
        "stops": True,
    }


def _switch_value(context: Context, misuse: Misuse, common: dict[str, Any]) -> Finding:
    """`--enable-x=False` where only `--enable-x` and `--no-enable-x` are taken."""
    flag = misuse.flag
    assert flag is not None  # only a known option can refuse an explicit value
    given = misuse.values[0].text if misuse.values else misuse.detail
    blank = " " if misuse.kind == "stray_word" else "="
    off = given.strip().lower() in ("false", "0", "no", "off")
    negative = next((n for n in flag.negatives if n.startswith("--no-")), None)
    if off and negative:
        fix, edits = (
            f"Write {negative} (the {blank.strip()}{given} form is refused).",
            (Edit("rename", flag.name, negative, True),),
        )
    elif off:
        fix, edits = f"Delete {flag.name}; it is off unless given.", (Edit("unset", flag.name),)
    else:
        fix, edits = f"Write {flag.name} alone.", (Edit("set", flag.name, value=True),)
    return Finding(
        code="FL-10",
        change="value_syntax",
        message=f"{flag.name}{blank}{given} is refused at {context.target}: the option is a switch and takes no value.",
        fix=fix,
        edits=edits,
        **common,
    )


def _left(
    flag: str, value: str, why: str, gone: str, fix: str | None, rename: str | None, common: dict[str, Any]
) -> Finding:
    """A value whose feature was taken out of the release."""
    edits = (Edit("set", flag, value=rename, safe=False),) if rename else ()
    return Finding(
        code="FL-18",
        change="removed",
        message=f"{flag} {value} is not in the release from {gone} on: {why}.",
        fix=fix,
        edits=edits,
        **common,
    )


def _bad_choice(context: Context, misuse: Misuse, given: str, common: dict[str, Any]) -> Finding:
    flag = misuse.flag
    assert flag is not None  # only a known option has choices
    choices = [str(choice) for choice in flag.choices or []]
    near = difflib.get_close_matches(given, choices, n=1, cutoff=0.6)
    listed = ", ".join(choices[:12]) + (", ..." if len(choices) > 12 else "")
    return Finding(
        code="FL-09",
        change="choice",
        message=f"{flag.name} does not take {given!r} at {context.target}; it takes {listed}.",
        fix=f"Did you mean {near[0]!r}?" if near else f"Use one of {listed}.",
        **common,
    )


def _value_gone(context: Context, use: Use) -> Iterator[Finding]:
    gone = context.changes.value_gone(use.flag.name, use.value, context.target) if use.values else None
    if gone is None:
        return
    if use.flag.choices and use.value in use.flag.choices:
        return
    common = {
        "severity": "error",
        "place": use.values[0].place,
        "flags": (use.flag.name,),
        "evidence": gone.evidence,
        "stops": True,
    }
    yield _left(gone.flag, gone.value, gone.why, gone.gone, gone.fix, gone.rename, common)


def _abbreviated(context: Context, use: Use) -> Finding:
    return Finding(
        code="FL-13",
        severity="info",
        change="value_syntax",
        message=f"{use.spelled} is read as {use.flag.name} only while no other option begins that way.",
        place=use.option.place,
        flags=(use.flag.name,),
        fix=f"Write {use.flag.name}.",
        evidence=f"{context.target} {use.flag.evidence}",
        edits=(Edit("rename", use.spelled, use.flag.name),),
    )


def _two_in_one(context: Context, word: Argument) -> Finding:
    """An option and its value in one word, as a list item without a split (`- --dtype auto`)."""
    option = word.text.split(" ", 1)[0]
    flag = context.table.find(option)
    return Finding(
        code="FL-14",
        severity="error",
        change="value_syntax",
        message=f"{word.text!r} is one word; the parser of {context.target} sees no option in it.",
        place=word.place,
        flags=(flag.name if flag else option,),
        fix=f"Write {word.text.replace(' ', '=', 1)}, or two words.",
        evidence=f"{context.target} flag table",
        stops=True,
    )


DASHES = ("–", "—", "−", "‐", "‑")


def _dash(context: Context, word: Argument) -> Finding:
    """An option whose dashes a word processor replaced."""
    name = "--" + word.text.lstrip("".join(DASHES) + "-")
    return Finding(
        code="FL-14",
        severity="error",
        change="value_syntax",
        message=f"{word.text!r} begins with a typographic dash, so the parser of {context.target} sees no option.",
        place=word.place,
        flags=(name.split("=", 1)[0],),
        fix=f"Write {name} with two hyphens.",
        evidence=f"{context.target} flag table",
        stops=True,
    )


def _stray_words(context: Context) -> Iterator[Finding]:
    """Words that belong to no option; the first one of `vllm serve` is the model."""
    words = context.parsed.positionals
    if context.configuration.entry_point == "serve" or context.configuration.entry_point is None:
        words = words[1:]
    typographic = False
    for word in words:
        if word.opaque or (typographic and not word.text.startswith(DASHES)):
            continue
        typographic = word.text.startswith(DASHES)
        if typographic:
            yield _dash(context, word)
            continue
        blank = not word.text.strip()
        if word.text.startswith("-") and " " in word.text:
            yield _two_in_one(context, word)
            continue
        yield Finding(
            code="FL-14",
            severity="error",
            change="value_syntax",
            message="A blank follows the backslash at the end of the line, so the command ends there."
            if blank
            else f"{word.text!r} belongs to no option; the parser of {context.target} refuses it.",
            place=word.place,
            fix="Delete the blank after the backslash."
            if blank
            else "Delete it, or quote it together with the value it belongs to.",
            evidence=f"{context.target} flag table",
            stops=True,
        )


def _repeated(context: Context) -> Iterator[Finding]:
    """The same option twice on the command line with different values."""
    first: dict[str, Use] = {}
    for use in context.parsed.uses:
        if isinstance(use.option.origins[0], Entry) or use.flag.kind == "append":
            continue
        before = first.setdefault(use.flag.name, use)
        if before is not use and before.value != use.value:
            yield Finding(
                code="FL-15",
                severity="warning",
                change="override",
                message=f"{use.flag.name} is given twice; the last value wins.",
                place=use.option.place,
                flags=(use.flag.name,),
                fix="Keep one.",
                evidence="argparse keeps the last value",
            )
            first[use.flag.name] = use

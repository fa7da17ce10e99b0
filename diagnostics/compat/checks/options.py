"""Findings about single options: unknown, gone, going, not there yet, or with a value the release refuses."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..inputs.base import Configuration, Entry
from ..parsing.arguments import Argument
from ..parsing.parser import Misuse, Use
from ..releases import history
from ..releases.table import Flag, positive_of
from ..releases.versions import Version, parse
from .bounds import bound_findings
from .context import Context
from .findings import Edit, Finding, no_such
from .keywords import keyword, misnamed, server_only
from .remedies import head, remedy
from .values import (
    checkpoint_gone,
    common_parts,
    refused,
    stray_words,
    switch_value,
    unnamed_arguments,
    value_gone,
)
from .words import close_to

# What the parser would say of these is told as what it is, a trap of the settings file.
TOLD_AS_TRAPS = ("python_text", "null_value", "true_literal", "false_literal", "dotted_o")


def option_findings(context: Context) -> Iterator[Finding]:
    """Everything the target's parser would say about single options."""
    told = {id(trap.origin) for trap in context.arguments.traps if trap.kind in TOLD_AS_TRAPS}
    extended = _extended(context)
    for misuse in context.parsed.misuses:
        if misuse.flag is not None and misnamed(context, misuse):
            yield keyword(context, misuse, misuse.flag)
        elif (
            misuse.kind in ("bad_value", "bad_choice", "stray_word") and id(misuse.option.origins[0]) in told
        ):
            continue
        elif misuse.kind == "stray_word" and context.configuration.typed:
            continue  # a text where a chart or Python wants true or false: it is no word of a command
        elif misuse.kind == "stray_word":
            yield switch_value(context, misuse, common_parts(context, misuse))
        elif misuse.kind == "unknown" and misuse.spelled in extended:
            if misuse.spelled in context.changes.extensions:
                yield _extension(context, misuse, extended)
        elif misuse.kind == "unknown":
            finding = _absent(context, misuse)
            yield _passed_over(context, finding) if context.configuration.lenient else finding
        elif misuse.kind == "ambiguous":
            former = _formerly(context, misuse.spelled, misuse.option, misuse.values)
            yield former or refused(context, misuse)
        else:
            yield refused(context, misuse)
    yield from stray_words(context)
    yield from unnamed_arguments(context)
    seen: set[str] = set()
    for use in context.parsed.uses:
        if misnamed(context, use):
            yield keyword(context, use, use.flag)
            continue
        if context.configuration.usage != "api_server" and not use.flag.sets_engine:
            yield server_only(context, use)
        elif use.flag.deprecated and use.flag.name not in seen:
            seen.add(use.flag.name)
            yield _deprecated(context, use)
        if use.abbreviated:
            yield _formerly(context, use.spelled, use.option, use.values) or _abbreviated(context, use)
        yield from value_gone(context, use)
        if use is context.use(use.flag.name):
            yield from bound_findings(context, use)
    yield from checkpoint_gone(context)
    yield from _repeated(context)
    yield from _pairs(context)


def _extended(context: Context) -> list[str]:
    """The options no release has, where the command asks for a project that adds some: its switch, then the others."""
    unknown = [
        misuse.spelled
        for misuse in context.parsed.misuses
        if misuse.kind == "unknown" and context.options.name(head(misuse.spelled)) is None
    ]
    switches = [name for name in unknown if name in context.changes.extensions]
    return [*switches, *(name for name in unknown if name not in switches)] if switches else []


def _extension(context: Context, misuse: Misuse, extended: list[str]) -> Finding:
    """The switch of a project that extends the server's command, whose other options are its own affair."""
    project = context.changes.extensions[misuse.spelled]
    others = ", ".join(name for name in extended if name not in context.changes.extensions)
    return no_such(
        f"{misuse.spelled} is an option of {project}, which extends the server's command; {context.engine} "
        f"{context.target} alone does not start with it." + (f" Not checked: {others}." if others else ""),
        misuse.option.place,
        tuple(dict.fromkeys(extended)),
        fix=f"Install {project} in the release that goes with {context.target}.",
        evidence=f"{context.target} flag table",
    )


def _passed_over(context: Context, finding: Finding) -> Finding:
    """An option the release does not have, under a front end that reads the ones it knows and no others."""
    told = finding.message.removesuffix(".").removesuffix(f"; {context.target} does not start with it")
    return msgspec.structs.replace(
        finding,
        severity="warning",
        change="silently_ignored",
        message=f"{told}; KServe's server passes over it without a word.",
        stops=False,
    )


def _formerly(
    context: Context, spelled: str, option: Argument, values: tuple[Argument, ...]
) -> Finding | None:
    """An option written in full that is gone, where the release reads the word as short for other options."""
    name = context.options.name(spelled)
    if name is None or name in context.table.flags:
        return None
    if context.options.removed_by(name, context.target) is None:
        return None
    return _absent(context, Misuse("unknown", spelled, option, values))


def _absent(context: Context, misuse: Misuse) -> Finding:
    """An option that this release does not have."""
    spelled = head(misuse.spelled)
    name = context.options.name(spelled)
    if name is None:
        return _unknown(context, misuse, spelled)
    if name in context.table.flags:
        return _spelling_absent(context, misuse, name, spelled)
    span = context.options.removed_by(name, context.target)
    if span is None:
        return _too_early(context, misuse, name, spelled)
    change = context.changes.options.get(name)
    replaced = change is not None and change.replaced and bool(remedy(context, change, misuse)[1])
    why = f": {change.why}" if change else ""
    fix, edits = (
        remedy(context, change, misuse) if change else ("Delete it.", (Edit("unset", name, safe=False),))
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
        evidence=f"{span.last} {_evidence(context, name, span.last)}; absent from {span.gone}",
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
    negative = positive_of(spelled) != spelled
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


def _as_given(misuse: Misuse | Use, name: str) -> str:
    """The option's name, with the YAML key where it was given as one."""
    origin = misuse.option.origins[0]
    if isinstance(origin, Entry) and "--" + origin.key != name:
        return f"{name} (key {origin.key!r})"
    return name


def _evidence(context: Context, name: str, version: Version | None) -> str:
    return "" if version is None else history.evidence(context.engine, name, version)


def _unknown(context: Context, misuse: Misuse, spelled: str) -> Finding:
    positive = positive_of(spelled)
    switch = context.table.find(positive) if positive != spelled else None
    if switch is not None:
        return _no_negative(context, misuse, switch, spelled)
    meant = context.changes.synonyms.get(spelled)
    near = meant if meant in context.table.spellings() else nearest(spelled, context.table.spellings())
    hint = f"Did you mean {near}?" if near else None
    return no_such(
        f"{spelled} is no option of {context.engine} {context.target}, nor of any release with a table.",
        misuse.option.place,
        (spelled,),
        fix=hint,
        evidence=f"{context.target} flag table",
        edits=(Edit("rename", spelled, near, safe=False),) if near else (),
    )


def _no_negative(context: Context, misuse: Misuse, flag: Flag, spelled: str) -> Finding:
    """`--no-x` of an option that only `--x` is a spelling of."""
    off = flag.kind == "store_true"
    return no_such(
        f"{flag.name} has no {spelled} at {context.target}" + ("; it is off unless given." if off else "."),
        misuse.option.place,
        (spelled, flag.name),
        fix="Delete it." if off else f"Delete it, or give {flag.name} a value.",
        evidence=f"{context.target} {flag.evidence}",
        edits=(Edit("unset", spelled, safe=False),) if off else (),
    )


def nearest(spelled: str, spellings: list[str]) -> str | None:
    """The option that looks most like a misspelled one, or None."""
    if spelled[1:] in spellings:  # --cc for -cc
        return spelled[1:]
    close = close_to(spelled, spellings, cutoff=0.72)
    if close:
        return close
    words = set(spelled.strip("-").split("-"))
    scored = [(len(words & set(s.strip("-").split("-"))), -len(s), s) for s in spellings]
    best = max(scored, default=(0, 0, ""))
    return best[2] if best[0] >= 2 else None


def _too_early(context: Context, misuse: Misuse, name: str, spelled: str) -> Finding:
    since = context.options.arrives_after(name, context.target)
    kept = "" if name in (spelled, positive_of(spelled)) else f" (as {name})"
    return Finding(
        code="FL-05",
        severity="error",
        change="not_available_yet",
        message=f"{spelled}{kept} exists from {since} on; {context.target} does not start with it.",
        place=misuse.option.place,
        flags=(name,),
        fix=f"Upgrade to {since} or later, or delete it.",
        evidence=f"absent from {context.target}; {since} {_evidence(context, name, since)}",
        stops=True,
        edits=(Edit("unset", name, safe=False),),
    )


def _deprecated(context: Context, use: Use) -> Finding:
    name = use.flag.name
    change = context.changes.options.get(name)
    since = context.options.deprecated_since(name, context.target) or context.target
    gone = context.options.goes_after(name, context.target)
    when = f" and is removed in {gone}" if gone else ""
    why = f": {change.why}" if change else ""
    fix, edits = remedy(context, change, use) if change else (_first_sentence(use.flag.deprecated or ""), ())
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


def _repeated(context: Context) -> Iterator[Finding]:
    """The same option twice on the command line with different values."""
    first: dict[str, Use] = {}
    for use in context.parsed.uses:
        if isinstance(use.option.origins[0], Entry) or use.flag.kind == "append":
            continue
        before = first.setdefault(use.flag.name, use)
        if before is not use and before.value != use.value and _may_meet(context.configuration, before, use):
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


def _may_meet(configuration: Configuration, one: Use, other: Use) -> bool:
    """Whether two options are given at once in some run: those of two branches of a script need not be."""
    here, there = (configuration.blocks_at(use.option.origins[0].start) for use in (one, other))
    return here <= there or there <= here


def _pairs(context: Context) -> Iterator[Finding]:
    """Options that the front end refuses together, or one without the other."""
    for pair in context.changes.pairs:
        until = parse(pair.until) if pair.until else None
        if parse(pair.since) > context.target or (until is not None and context.target > until):
            continue
        other = pair.needs or pair.excludes or ""
        if not _is_on(context, pair.flag) or (pair.needs is not None) == _is_on(context, other):
            continue
        needs = pair.needs is not None
        yield Finding(
            code="FL-19",
            severity="error",
            change="conflict",
            message=f"{pair.flag} {'needs' if needs else 'does not go with'} {other} at {context.target}.",
            place=context.place_of([pair.flag]),
            flags=(pair.flag, other),
            fix=f"Add {other}, or drop {pair.flag}." if needs else f"Keep one of {pair.flag} and {other}.",
            evidence=f"{context.target} {pair.evidence}",
            stops=True,
        )


def _is_on(context: Context, flag: str) -> bool:
    """Whether an option is given and not turned off."""
    use = context.use(flag)
    return use is not None and use.value is not False

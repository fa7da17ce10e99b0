"""Findings about what the configuration does not say: defaults that differ between the two releases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..releases.changes import DefaultChange, MeaningChange
from ..releases.table import option_of
from .context import Context
from .findings import Edit, Finding, Severity

# Effective defaults compared between the two releases: the ones a server's behaviour and memory hang on.
COMPARED = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "block_size",
    "async_scheduling",
    "kv_cache_dtype",
)


def default_findings(context: Context) -> Iterator[Finding]:
    """Changed defaults this configuration relies on, and changed meanings of what it gives."""
    if context.start is None or context.start == context.target:
        return
    said: set[str] = set()
    for change in context.changes.defaults_between(context.start, context.target):
        if _relies(context, change):
            said.add(change.flag)
            yield _default(context, change)
    for change in context.changes.meanings_between(context.start, context.target):
        finding = _meaning(context, change)
        if finding is not None:
            yield finding
    yield from _effective(context, said)


def _relies(context: Context, change: DefaultChange) -> bool:
    if context.gives(change.flag) or any(context.gives(name) for name in change.unless):
        return False
    if change.needs and not any(context.gives(name) for name in change.needs):
        return False
    table = context.table
    flag = table.flags.get(change.flag)
    if flag is not None and context.configuration.usage != "api_server" and not flag.sets_engine:
        return False
    return change.flag in table.flags or change.flag in table.env or not change.flag.startswith("-")


def _default(context: Context, change: DefaultChange) -> Finding:
    variable = not change.flag.startswith("-")
    severity: Severity = "warning" if change.severity == "warning" else "info"
    return Finding(
        code="EN-05" if variable else "FL-06",
        severity=severity,
        change="changed_default",
        message=f"{change.flag} is not set, and its {_change(change)}. {change.message}",
        place=context.configuration.start_place,
        flags=() if variable else (change.flag,),
        env=(change.flag,) if variable else (),
        fix=change.fix,
        evidence=change.evidence,
        edits=tuple(Edit("set", flag, value=value, safe=False) for flag, value in change.set.items()),
    )


def _change(change: DefaultChange) -> str:
    if change.old == change.new:
        return f"default means something else from {change.at} on"
    return f"default changed at {change.at} from {_shown(change.old)} to {_shown(change.new)}"


def _shown(value: Any) -> str:
    return "unset" if value is None else repr(value) if isinstance(value, str) else str(value)


def _meaning(context: Context, change: MeaningChange) -> Finding | None:
    place = None
    if change.flag == "-O":
        word = next((w for w in context.configuration.words if w.text.startswith("-O")), None)
        place = word.place if word and not word.text.startswith("-O.") else None
        if place and word and word.text == "-O" and _next_is_json(context):
            return None
    else:
        use = context.use(change.flag)
        limit = change.only_if_above
        if use is not None and (limit is None or (isinstance(use.value, (int, float)) and use.value > limit)):
            place = use.option.place
    if place is None:
        return None
    return Finding(
        code="FL-07",
        severity="warning" if change.severity == "warning" else "info",
        change="changed_meaning",
        message=change.message,
        place=place,
        flags=(change.flag,),
        fix=change.fix,
        evidence=change.evidence,
    )


def _next_is_json(context: Context) -> bool:
    words = context.configuration.words
    return any(a.text == "-O" and b.text.startswith("{") for a, b in itertools.pairwise(words))


def _keeping(context: Context, flag: str, old: Any) -> str | None:
    """How the target is told to keep a value."""
    known = context.table.find(flag)
    if known is None or not isinstance(old, bool):
        return f"{flag} {old} keeps the old value." if known else None
    spelled = flag if old else known.off or (f"{flag}=False" if known.kind == "store_boolean" else None)
    return f"{spelled} keeps it {'on' if old else 'off'}." if spelled else None


def _effective(context: Context, said: set[str]) -> Iterator[Finding]:
    """Defaults that code computes from hardware and model, where both releases' values are known."""
    assert context.start is not None  # only called with a release to come from
    before = context.effective(COMPARED, context.start)
    after = context.effective(COMPARED)
    for name in COMPARED:
        flag = option_of(name)
        old, new = before.get(name), after.get(name)
        if flag in said or old is None or new is None or "given" in (old.origin, new.origin):
            continue
        if context.gives(flag) or old.depends_on or new.depends_on or old.value == new.value:
            continue
        if None in (old.value, new.value):
            continue  # decided while loading, on one side at least
        yield Finding(
            code="FL-06",
            severity="info",
            change="changed_default",
            message=f"{flag} is not set; it amounts to {_shown(old.value)} at {context.start} and to "
            f"{_shown(new.value)} at {context.target}.",
            place=context.configuration.start_place,
            flags=(flag,),
            fix=_keeping(context, flag, old.value),
            evidence=f"{context.target} {new.evidence}" if new.evidence else None,
        )

"""Findings about options that do not go together: the rules a configuration meets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ...cost.devices import Device
from ..facts.unknown import Unknown
from ..inputs.base import Word
from ..releases.table import name_of
from ..rules.evaluate import RuleHit, evaluate
from ..rules.records import load
from ..rules.resolvers import parser_defaults
from ..rules.scope import Facts, Scope
from .context import Context
from .findings import Edit, Finding
from .remedies import merged_values


def rule_findings(context: Context) -> Iterator[Finding]:
    """The combination rules that this configuration meets, and those it would meet once its options are replaced."""
    facts = facts_of(context, context.values)
    hits = evaluate(context.engine, context.target, facts)
    misread = {f"given.{m.flag.dest}" for m in context.parsed.misuses if m.flag is not None}
    for hit in hits:
        if not misread.isdisjoint(hit.missing):
            continue  # what is unknown is a value that is refused, as another finding says
        yield _from_hit(context, hit)
    yield from _judge_memory(context, facts)
    repaired = _repaired(context)
    if repaired:
        before = {hit.rule.code for hit in hits}
        for hit in evaluate(context.engine, context.target, facts_of(context, context.values | repaired)):
            if hit.rule.code not in before and hit.certain:
                yield _after_repair(context, hit)


def _judge_memory(context: Context, facts: Facts) -> Iterator[Finding]:
    """Says that a named GPU's memory was not compared with what the model needs, and what would tell."""
    if context.device is None or context.engine != "vllm":
        return
    left = Scope(load(context.engine), context.target, facts)("memory.kv_gib")
    if not isinstance(left, Unknown):
        return
    model = context.values.get("model")
    named = f"the model {model}" if isinstance(model, str) and model else "the model"
    missing = sorted(left.missing)
    if "model.hidden_size" in missing:
        why, fix = f"{named} has no sheet here", "Name its config.json with --model."
    elif missing == ["model.weights_gib"]:
        why = f"{named} is spread over GPUs in a way that is not added up"
        fix = "Tell the weights' size with --model weights_gib=NUMBER."
    elif missing == ["model.shape"]:
        why, fix = f"the config of {named} is of a kind that is not added up", "Try engine diagnose."
    else:
        why, fix = "it depends on " + ", ".join(missing), None
    yield memory_not_looked_at(context, context.device, why, fix, tuple(missing))


def memory_not_looked_at(
    context: Context, device: Device, why: str, fix: str | None, missing: tuple[str, ...] = ()
) -> Finding:
    """The finding that a GPU's memory was not compared with what the model needs."""
    return Finding(
        code="IN-02",
        severity="info",
        change="unknown",
        message=f"Memory not looked at: {why}, so that it may not fit {device.name}.",
        place=context.configuration.start_place,
        fix=fix,
        depends_on=missing,
    )


def facts_of(context: Context, values: dict[str, Any]) -> Facts:
    """What rules may ask of a configuration, with these values of its options."""
    return Facts(
        flags=values,
        env=context.env,
        model=dict(context.model),
        device=context.device,
        defaults=parser_defaults(context.engine, context.target),
        usage=context.usage,
        more=context.more,
    )


def _from_hit(context: Context, hit: RuleHit) -> Finding:
    finding = _finding(context, hit)
    doubt = (*hit.doubt, *_branches(context, hit))
    if finding.severity != "error" or not doubt:
        return finding
    return msgspec.structs.replace(
        finding, severity="warning", message=f"Perhaps: {finding.message}", depends_on=doubt, edits=()
    )


def _branches(context: Context, hit: RuleHit) -> tuple[str, ...]:
    """The options of a rule that only one branch of the script gives: they may never meet."""
    uses = [use for flag in hit.flags if (use := context.use(flag)) is not None]
    given = [origin for use in uses for origin in use.option.origins]
    return tuple(f"whether {w.text} is given" for w in given if isinstance(w, Word) and w.conditional)


def _finding(context: Context, hit: RuleHit) -> Finding:
    flags = tuple(_spelled(context, flag) for flag in _named(context, hit))
    return Finding(
        code=hit.rule.code,
        severity=hit.severity,
        change=hit.rule.change,
        message=_naming(hit.message if hit.certain else _undecided(hit), flags),
        place=context.place_of([*hit.flags, *hit.rule.env]),
        flags=flags,
        env=tuple(name for name in hit.rule.env if name in context.configuration.env),
        fix=hit.fix,
        evidence=hit.evidence,
        depends_on=hit.missing,
        stops=hit.would_stop and (hit.certain or hit.rule.unknown == "ask"),
        edits=_edits(hit),
    )


def _named(context: Context, hit: RuleHit) -> list[str]:
    """A rule's options; those of them that are given, when the rule tells what becomes of any of them."""
    given = [flag for flag in hit.flags if context.use(flag) is not None]
    return (
        given
        if given and hit.rule.change in ("override", "silently_ignored", "deprecated")
        else list(hit.flags)
    )


def _undecided(hit: RuleHit) -> str:
    return f"{hit.rule.title}: whether that applies here depends on {', '.join(hit.missing)}."


def _naming(message: str, flags: tuple[str, ...]) -> str:
    """The message, with the options in front where it speaks of them in words only."""
    words = [word for flag in flags for word in (flag, name_of(flag))]
    if not flags or any(word in message for word in words):
        return message
    return f"{', '.join(flags)}: {message}"


def _spelled(context: Context, flag: str) -> str:
    """A rule's flag as the configuration spells it when it is turned off there (`--no-enable-x`)."""
    use = context.use(flag)
    return context.shown(use) if use is not None else flag


def _edits(hit: RuleHit) -> tuple[Edit, ...]:
    remedy = hit.rule.fix
    if remedy is None or not hit.certain:
        return ()
    edits = [Edit("unset", flag, safe=remedy.safe) for flag in remedy.unset]
    edits += [Edit("rename", flag, to, safe=remedy.safe) for flag, to in remedy.rename.items()]
    for flag, value in remedy.set.items():
        plain = value if isinstance(value, (str, bool)) else str(value)
        edits.append(Edit("set", flag, value=plain, safe=remedy.safe))
    return tuple(edits)


def _repaired(context: Context) -> dict[str, Any]:
    """The JSON options that the given, removed options amount to after the proposed replacement."""
    into: set[str] = set()
    for misuse in context.parsed.misuses:
        name = context.options.name(misuse.spelled) if misuse.kind == "unknown" else None
        change = context.changes.options.get(name or "")
        if change is not None and change.into and change.into in context.table.flags:
            into.add(change.into)
    return {name_of(flag): merged_values(context, flag) for flag in sorted(into)}


def _after_repair(context: Context, hit: RuleHit) -> Finding:
    """A rule that the replaced options would meet: worth knowing before the fix is made."""
    finding = _from_hit(context, hit)
    stops = hit.would_stop
    return msgspec.structs.replace(
        finding,
        severity="warning" if stops else "info",
        change="conflict",
        message=f"After the replacement: {hit.message}",
        fix=hit.fix if stops else f"None needed. {hit.fix or ''}".strip(),
        stops=False,
        edits=(),
    )

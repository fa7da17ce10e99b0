"""The check: one configuration, one target release, every finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from .arguments import Argument
from .context import Context
from .devices import Device
from .findings import Edit, Finding, Result, in_order
from .inputs.base import Configuration
from .model_input import known_facts
from .options import option_findings
from .resolvers import parser_defaults
from .rules import Facts, RuleHit, evaluate
from .traps import trap_findings
from .versions import Version

# Options whose values name parts of the engine (`names.py`).
NAMED = frozenset(
    {
        "--attention-backend",
        "--kv-cache-dtype",
        "--kv-transfer-config",
        "--load-format",
        "--quantization",
        "--reasoning-parser",
        "--tool-call-parser",
    }
)


def check(
    configuration: Configuration,
    *,
    engine: str | None = None,
    start: Version | None,
    target: Version,
    model: Mapping[str, Any] | None = None,
    device: Device | None = None,
) -> Result:
    """Everything that happens to `configuration` at `target`, coming from `start` (None: nothing to compare with).

    `model` holds facts of the model (a config.json, or some of its keys), `device` the accelerator; rules that need
    one that is missing say so. The verdict `starts` follows from the findings.
    """
    name = engine or configuration.engine
    context = Context(configuration, name, start, target, known_facts(model or {}), device)
    found = [
        *option_findings(context),
        *trap_findings(context),
        *_when_needed(context),
        *_default_findings(context),
        *rule_findings(context),
        *_unread(context),
    ]
    return Result(
        input=configuration.label,
        engine=name,
        start=None if start is None else str(start),
        target=str(target),
        findings=in_order(found),
        notes=tuple(configuration.notes),
    )


def _when_needed(context: Context) -> Iterator[Finding]:
    """The checks of what most configurations do not have; their modules are imported for those that do."""
    uses = context.parsed.uses
    if any(use.flag.nested and isinstance(use.value, dict) for use in uses):
        from .nested import nested_findings

        yield from nested_findings(context)
    if context.configuration.env:
        from .environment import environment_findings

        yield from environment_findings(context)
    if context.configuration.env or any(use.flag.name in NAMED for use in uses):
        from .names import name_findings

        yield from name_findings(context)


def _default_findings(context: Context) -> Iterator[Finding]:
    if context.start is None or context.start == context.target:
        return iter(())
    from .defaults import default_findings

    return default_findings(context)


def rule_findings(context: Context) -> Iterator[Finding]:
    """The combination rules that this configuration meets, and those it would meet once its options are replaced."""
    facts = _facts(context, context.values)
    hits = evaluate(context.engine, context.target, facts)
    misread = {f"given.{m.flag.dest}" for m in context.parsed.misuses if m.flag is not None}
    for hit in hits:
        if not misread.isdisjoint(hit.missing):
            continue  # what is unknown is a value that is refused, as another finding says
        yield _from_hit(context, hit)
    repaired = _repaired(context)
    if repaired:
        before = {hit.rule.code for hit in hits}
        for hit in evaluate(context.engine, context.target, _facts(context, context.values | repaired)):
            if hit.rule.code not in before and hit.certain:
                yield _after_repair(context, hit)


def _facts(context: Context, values: dict[str, Any]) -> Facts:
    return Facts(
        flags=values,
        env=context.env,
        model=dict(context.model),
        device=context.device,
        defaults=parser_defaults(context.engine, context.target),
    )


def _from_hit(context: Context, hit: RuleHit) -> Finding:
    flags = tuple(_spelled(context, flag) for flag in _named(context, hit))
    would_stop = not hit.certain and hit.rule.unknown == "ask" and _error_at_start(context, hit)
    return Finding(
        code=hit.rule.code,
        severity=hit.severity,
        change=hit.change,
        message=_naming(hit.message if hit.certain else _undecided(hit), flags),
        place=context.place_of([*hit.flags, *hit.rule.env]),
        flags=flags,
        env=tuple(name for name in hit.rule.env if name in context.configuration.env),
        fix=hit.fix,
        evidence=hit.evidence,
        depends_on=hit.missing,
        stops=hit.stops_start or would_stop,
        edits=_edits(hit),
    )


def _named(context: Context, hit: RuleHit) -> list[str]:
    """A rule's options; those of them that are given, when the rule tells what becomes of any of them."""
    given = [flag for flag in hit.flags if context.use(flag) is not None]
    return (
        given if given and hit.change in ("override", "silently_ignored", "deprecated") else list(hit.flags)
    )


def _undecided(hit: RuleHit) -> str:
    return f"{hit.rule.title}: whether that applies here depends on {', '.join(hit.missing)}."


def _naming(message: str, flags: tuple[str, ...]) -> str:
    """The message, with the options in front where it speaks of them in words only."""
    words = [word for flag in flags for word in (flag, flag.lstrip("-").replace("-", "_"))]
    if not flags or any(word in message for word in words):
        return message
    return f"{', '.join(flags)}: {message}"


def _error_at_start(context: Context, hit: RuleHit) -> bool:
    """Whether an undecided rule would stop the start-up if its missing facts turned out badly."""
    where = hit.rule.range_for(context.target)
    severity = (where.severity if where else None) or hit.rule.severity
    when = (where.at if where else None) or hit.rule.at
    return severity == "error" and when == "startup"


def _spelled(context: Context, flag: str) -> str:
    """A rule's flag as the configuration spells it when it is turned off there (`--no-enable-x`)."""
    use = context.use(flag)
    return context.shown(use) if use is not None else flag


def _edits(hit: RuleHit) -> tuple[Edit, ...]:
    remedy = hit.remedy
    if remedy is None or not hit.certain:
        return ()
    edits = [Edit("unset", flag, safe=remedy.safe) for flag in remedy.unset]
    edits += [Edit("rename", flag, to, safe=remedy.safe) for flag, to in remedy.rename.items()]
    edits += [Edit("set", flag, value=_plain(value), safe=remedy.safe) for flag, value in remedy.set.items()]
    return tuple(edits)


def _plain(value: Any) -> str | bool:
    return value if isinstance(value, (str, bool)) else str(value)


def _repaired(context: Context) -> dict[str, Any]:
    """The JSON options that the given, removed options amount to after the proposed replacement."""
    from .remedies import merged_values

    into: set[str] = set()
    for misuse in context.parsed.misuses:
        name = context.options.name(misuse.spelled) if misuse.kind == "unknown" else None
        change = context.changes.options.get(name or "")
        if change is not None and change.into and change.into in context.table.flags:
            into.add(change.into)
    return {flag.lstrip("-").replace("-", "_"): merged_values(context, flag) for flag in sorted(into)}


def _after_repair(context: Context, hit: RuleHit) -> Finding:
    """A rule that the replaced options would meet: worth knowing before the fix is made."""
    finding = _from_hit(context, hit)
    stops = hit.stops_start
    return msgspec.structs.replace(
        finding,
        severity="warning" if stops else "info",
        change="conflict",
        message=f"After the replacement: {hit.message}",
        fix=hit.fix if stops else f"None needed. {hit.fix or ''}".strip(),
        stops=False,
        edits=(),
    )


def _unread(context: Context) -> Iterator[Finding]:
    """Settings files and variables whose content is not known: nothing can be promised about them."""
    doubled = context.configuration.doubled
    if doubled is not None:
        yield Finding(
            code="IN-03",
            severity="error",
            change="conflict",
            message="The image's entry point starts the server itself, so these words become arguments that it refuses.",
            place=doubled.place,
            flags=(doubled.text,),
            fix="Give the image only the model and its options, or replace its entry point.",
            evidence="the official image's ENTRYPOINT",
            stops=True,
        )
    for name in context.configuration.unread:
        yield Finding(
            code="IN-01",
            severity="warning",
            change="unknown",
            message=f"The settings file {name} could not be read, so what it holds was not checked.",
            place=context.configuration.start_place,
            flags=("--config",),
            fix=f"Check {name} as well.",
            depends_on=(name,),
            stops=True,
        )
    for argument in _opaque_words(context):
        yield _unknown_words(argument)


def _opaque_words(context: Context) -> list[Argument]:
    """Words nobody can know; the first one of `vllm serve` is the model, which need not be known."""
    words = context.parsed.opaque
    serves = context.configuration.entry_point == "serve" and not context.parsed.positionals
    return words[1:] if serves else words


def _unknown_words(argument: Argument) -> Finding:
    return Finding(
        code="IN-02",
        severity="info",
        change="unknown",
        message=f"What {argument.text} stands for is only known when it runs; it was not checked.",
        place=argument.place,
        fix="Check the expanded command line.",
        depends_on=(argument.text,),
        stops=True,
    )

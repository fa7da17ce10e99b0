"""The rules that one configuration meets at one release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..facts.unknown import Unknown
from . import conditions
from .records import Change, Fix, Range, Rule, Severity, load
from .scope import Facts, Scope


@dataclass(frozen=True)
class RuleHit:
    """A rule that applies (`certain`) or may apply, once the facts named in `missing` are told."""

    rule: Rule
    certain: bool
    missing: tuple[str, ...]
    flags: tuple[str, ...]
    message: str
    fix: str | None
    evidence: str
    severity: Severity
    change: Change
    stops_start: bool
    remedy: Fix | None = None
    # What may give the options whose absence the rule rests on.
    doubt: tuple[str, ...] = ()


def evaluate(engine: str, version: object, facts: Facts) -> list[RuleHit]:
    """The rules of a release that this configuration meets, certain ones first, in the order of the rule set."""
    rule_set = load(engine)
    scope = Scope(rule_set, version, facts)
    hits = [hit for rule in rule_set.rules if (hit := _apply(engine, rule, version, facts, scope))]
    if facts.more:
        wider = Scope(rule_set, version, facts, facts.more)
        hits = [_doubted(hit, version, wider) for hit in hits]
    return sorted(hits, key=lambda hit: not hit.certain)


def _apply(engine: str, rule: Rule, version: object, facts: Facts, scope: Scope) -> RuleHit | None:
    where = rule.range_for(version)
    if where is None:
        return None
    outcome = conditions.evaluate(where.when or rule.when, scope)
    certain = not isinstance(outcome, Unknown)
    flags = where.flags or rule.flags
    if certain:
        if not outcome:
            return None
    elif rule.unknown == "silent" or not _mentions(facts, flags, rule.env):
        return None
    if rule.culprits:
        flags = [
            flag for flag, node in rule.culprits.items() if conditions.evaluate(node, scope) is True
        ] or flags
    severity = where.severity or rule.severity
    fix = where.fix or rule.fix
    return RuleHit(
        rule=rule,
        certain=certain,
        missing=tuple(sorted(outcome.missing)) if isinstance(outcome, Unknown) else (),
        flags=tuple(flags),
        message=render(sentence(where.consequence or rule.consequence), scope),
        fix=render(sentence(fix.text), scope) if fix else None,
        evidence=evidence_of(engine, rule, version, where),
        severity=severity if certain else "info",
        change=where.change or rule.change,
        stops_start=certain and severity == "error" and (where.at or rule.at) == "startup",
        remedy=fix,
    )


def _doubted(hit: RuleHit, version: object, wider: Scope) -> RuleHit:
    """The hit, with what may give the options that it rests on not being given."""
    where = hit.rule.range_for(version)
    if not hit.certain or where is None:
        return hit
    outcome = conditions.evaluate(where.when or hit.rule.when, wider)
    return replace(hit, doubt=tuple(sorted(outcome.missing))) if isinstance(outcome, Unknown) else hit


def _mentions(facts: Facts, flags: list[str], env: list[str]) -> bool:
    given = {name.replace("_", "-") for name in facts.flags}
    return any(flag.lstrip("-").removeprefix("no-") in given for flag in flags) or any(
        name in facts.env for name in env
    )


def render(text: str, scope: Callable[[str], Any]) -> str:
    """`text` with each ``{name}`` replaced by the value the scope gives, or by the bare name if unknown."""
    parts = text.split("{")
    out = [parts[0]]
    for part in parts[1:]:
        name, closed, rest = part.partition("}")
        out.append(f"{_shown(name, scope)}{rest}" if closed and _is_name(name) else "{" + part)
    return "".join(out)


def sentence(text: str) -> str:
    """`text` with a capital, unless it opens with a flag or an identifier, and a full stop."""
    word = text.split(" ", 1)[0]
    opened = text[:1].upper() + text[1:] if word.rstrip(",:").isalpha() and word.islower() else text
    return opened if opened.endswith((".", "!", "?")) else f"{opened}."


def _is_name(text: str) -> bool:
    return bool(text) and all(word.isidentifier() for word in text.split("."))


def _shown(name: str, scope: Callable[[str], Any]) -> str:
    value = scope(name)
    if isinstance(value, Unknown):
        return name
    if isinstance(value, float):
        return f"{value:.1f}" if name.endswith("capability") else f"{value:.4g}"
    return str(value)


def evidence_of(engine: str, rule: Rule, version: object, where: Range) -> str:
    """``release file:line`` of the code behind a rule at a release; the range's own reading if it was not located."""
    from .evidence import located

    place = located(engine, rule.code, version)
    return f"{version} {place}" if place else f"{where.since} {where.evidence}"

"""The rules that one configuration meets at one release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..facts.unknown import Unknown
from . import conditions
from .records import Rule, Severity, load
from .scope import Facts, Scope


@dataclass(frozen=True)
class RuleHit:
    """A rule, as the release has it, that applies (`certain`) or may apply once the facts in `missing` are told.

    `flags` are the rule's, or the culprits among them; `message` and `fix` are its words with the values filled in.
    """

    rule: Rule
    certain: bool
    missing: tuple[str, ...]
    flags: tuple[str, ...]
    message: str
    fix: str | None
    evidence: str
    # What may give the options whose absence the rule rests on.
    doubt: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        """The rule's own where it applies for certain."""
        return self.rule.severity if self.certain else "info"

    @property
    def would_stop(self) -> bool:
        """Whether the release would not come up, were the rule to apply."""
        return self.rule.severity == "error" and self.rule.at == "startup"


def evaluate(engine: str, version: object, facts: Facts) -> list[RuleHit]:
    """The rules of a release that this configuration meets, certain ones first, in the order of the rule set."""
    rule_set = load(engine)
    scope = Scope(rule_set, version, facts)
    hits = [hit for rule in rule_set.rules if (hit := _apply(engine, rule, version, facts, scope))]
    if facts.more:
        wider = Scope(rule_set, version, facts, facts.more)
        hits = [_doubted(hit, wider) for hit in hits]
    return sorted(hits, key=lambda hit: not hit.certain)


def _apply(engine: str, rule: Rule, version: object, facts: Facts, scope: Scope) -> RuleHit | None:
    held = rule.held(version)
    if held is None:
        return None
    outcome = conditions.evaluate(held.when, scope)
    missing: tuple[str, ...] = ()
    if isinstance(outcome, Unknown):
        if held.unknown == "silent" or not _mentions(facts, held.flags, held.env):
            return None
        missing = tuple(sorted(outcome.missing))
    elif not outcome:
        return None
    culprits = [flag for flag, node in held.culprits.items() if conditions.evaluate(node, scope) is True]
    return RuleHit(
        rule=held,
        certain=not missing,
        missing=missing,
        flags=tuple(culprits or held.flags),
        message=render(sentence(held.consequence), scope),
        fix=render(sentence(held.fix.text), scope) if held.fix else None,
        evidence=evidence_of(engine, held, version),
    )


def _doubted(hit: RuleHit, wider: Scope) -> RuleHit:
    """The hit, with what may give the options that it rests on not being given."""
    if not hit.certain:
        return hit
    outcome = conditions.evaluate(hit.rule.when, wider)
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


def evidence_of(engine: str, held: Rule, version: object) -> str:
    """``release file:line`` of the code behind a rule that a release has; the range's own if it was not located."""
    from .evidence import located

    place = located(engine, held.code, version)
    return f"{version} {place}" if place else f"{held.versions[0].since} {held.versions[0].evidence}"

"""Combination rules of an engine's releases, as data, and their evaluation over one configuration.

The rules stand in ``rules/<engine>/*.yaml``, one record a rule, beside ``terms.yaml``, the words their conditions
share. They are packed into ``rules/<engine>.json`` (`rulepack`), which decodes in about a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from . import conditions
from .conditions import Unknown
from .devices import Device
from .model_facts import model_facts

RULES_FOLDER = Path(__file__).with_name("rules")

Severity = Literal["error", "warning", "info"]
Change = Literal[
    "unknown",
    "removed",
    "replaced",
    "deprecated",
    "not_available_yet",
    "changed_default",
    "changed_meaning",
    "value_syntax",
    "choice",
    "conflict",
    "hardware_conflict",
    "override",
    "silently_ignored",
    "honoured",
]


class Fix(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What to do: `text` for people; `set`, `unset` and `rename` (flags) for ``--fix``, applied unasked if `safe`."""

    text: str
    set: dict[str, Any] = {}
    unset: list[str] = []
    rename: dict[str, str] = {}
    safe: bool = False


class Range(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Releases (`since` to `until`, both inclusive; no `until` is open) and what differs there from the rule.

    `evidence` is the place read by eye in the release `since`; other releases' places are in the evidence index.
    """

    since: str
    evidence: str
    until: str | None = None
    when: Any = None
    severity: Severity | None = None
    change: Change | None = None
    consequence: str | None = None
    fix: Fix | None = None
    flags: list[str] | None = None
    at: Literal["startup", "serving"] | None = None


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One rule. `when` is a compiled condition; `consequence` a sentence whose ``{names}`` are filled in.

    `unknown` says what happens when a fact is missing: ``silent``; ``note``, an uncertain hit that leaves the verdict
    alone, for what is rarely so; ``ask``, one that leaves the verdict open. `at` says whether an error stops the
    start-up or comes later, while serving. Where `culprits` gives a condition for a flag, a hit names
    those flags only whose condition holds.
    """

    code: str
    title: str
    severity: Severity
    change: Change
    consequence: str
    versions: list[Range]
    when: Any = None
    flags: list[str] = []
    env: list[str] = []
    fix: Fix | None = None
    unknown: Literal["silent", "note", "ask"] = "silent"
    at: Literal["startup", "serving"] = "startup"
    culprits: dict[str, Any] = {}
    note: str = ""

    def range_for(self, version: object) -> Range | None:
        """The range that holds at a release, or None."""
        key = release_key(str(version))
        return next((r for r in self.versions if _within(key, r.since, r.until)), None)


class TermRange(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The meaning of a term, or a flag's computed default, for the releases `since` to `until` (compiled)."""

    value: Any
    since: str | None = None
    until: str | None = None


class RuleSet(msgspec.Struct, frozen=True):
    """Everything packed for one engine; `generated_by` is the command that made the file."""

    generated_by: str
    rules: list[Rule]
    terms: dict[str, list[TermRange]]
    defaults: dict[str, list[TermRange]]


def no_default(name: str) -> Any:
    """The defaults of a parser nobody described: every flag is unset."""
    return None


@dataclass
class Facts:
    """What is known of a configuration: the flags given, the environment, the model, the device.

    `flags` maps the snake_case name to the parsed value of what was given; `defaults` gives the parser's default of
    a flag or of a JSON key (``speculative_config.method``), null where there is none. `usage` is ``api_server`` or
    ``llm``: some defaults differ between the server and the offline class.
    """

    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    device: Device | None = None
    defaults: Callable[[str], Any] = no_default
    usage: str = "api_server"


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


@cache
def release_key(text: str) -> tuple[int, ...]:
    """A sort key for a release such as ``0.9.0.1`` or ``0.8.5.post1``."""
    base, _, post = text.partition(".post")
    numbers = [int(part) for part in base.split(".")]
    return (*numbers, *[0] * (4 - len(numbers)), int(post or 0))


def holds(version: object, since: str | None, until: str | None) -> bool:
    """Whether a release lies in a range, both ends included."""
    return _within(release_key(str(version)), since, until)


def _within(key: tuple[int, ...], since: str | None, until: str | None) -> bool:
    return (since is None or release_key(since) <= key) and (until is None or key <= release_key(until))


@cache
def load(engine: str) -> RuleSet:
    """The packed rules of an engine; an engine without rules has none."""
    path = RULES_FOLDER / f"{engine}.json"
    if not path.is_file():
        return RuleSet(generated_by="", rules=[], terms={}, defaults={})
    return msgspec.json.decode(path.read_bytes(), type=RuleSet)


class Scope:
    """Resolves the names in conditions for one configuration at one release.

    ``given.x`` is what the user gave or null; ``env.X``, ``model.x`` and ``device.x`` are facts, and ``backend.x``
    one of the attention backend in use, which only a person can tell; ``memory.x`` is the start-up memory in GiB; a
    term of the rule set is computed; anything else is a flag's effective value (``speculative_config.method`` reads
    JSON).
    """

    def __init__(self, rule_set: RuleSet, version: object, facts: Facts) -> None:
        self._terms = rule_set.terms
        self._defaults = rule_set.defaults
        self._version = str(version)
        self._key = release_key(self._version)
        self._startup: dict[str, Any] | Unknown | None = None
        self._facts = facts
        self._model = model_facts(facts.model)
        self._known: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = conditions.unknown(name)  # what a definition that needs itself would see
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: str) -> Any:
        space, _, rest = name.partition(".")
        if space == "given":
            return _descend(self._facts.flags, rest)
        if space == "env":
            return self._facts.env.get(rest)
        if space == "model":
            return self._model.get(rest, conditions.unknown(name))
        if space == "device":
            return self._device(rest)
        if space == "memory":
            return self._memory(rest)
        if space == "backend":
            return self._model.get(name, conditions.unknown(name))
        if name == "usage":
            return self._facts.usage
        if name in self._terms:
            return self.value_of(self._terms[name])
        return self._effective(name, space, rest)

    def _device(self, attribute: str) -> Any:
        device = self._facts.device
        return conditions.unknown("device") if device is None else getattr(device, attribute)

    def _memory(self, name: str) -> Any:
        if self._startup is None:
            from .memory_rules import startup_memory

            self._startup = startup_memory(self._version, self, self._model)
        return self._startup if isinstance(self._startup, Unknown) else self._startup[name]

    def value_of(self, ranges: list[TermRange]) -> Any:
        """The value of the range that holds at this release, null where none does."""
        where = self.range_of(ranges)
        return conditions.evaluate(where.value, self) if where else None

    def range_of(self, ranges: list[TermRange]) -> TermRange | None:
        """The range that holds at this release."""
        return next((r for r in ranges if _within(self._key, r.since, r.until)), None)

    def default_of(self, name: str) -> TermRange | None:
        """How this release computes the default of a flag, or None where the parser's literal stands."""
        return self.range_of(self._defaults.get(name, []))

    def _effective(self, name: str, flag: str, rest: str) -> Any:
        given = self._facts.flags.get(flag)
        value = _descend(given, rest) if rest else given
        if value is not None:
            return value
        ranges = self._defaults.get(name)
        return self._facts.defaults(name) if ranges is None else self.value_of(ranges)


def _descend(value: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def evaluate(engine: str, version: object, facts: Facts) -> list[RuleHit]:
    """The rules of a release that this configuration meets, certain ones first, in the order of the rule set."""
    rule_set = load(engine)
    scope = Scope(rule_set, version, facts)
    hits = [hit for rule in rule_set.rules if (hit := _apply(engine, rule, version, facts, scope))]
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
        evidence=evidence(engine, rule, version, where),
        severity=severity if certain else "info",
        change=where.change or rule.change,
        stops_start=certain and severity == "error" and (where.at or rule.at) == "startup",
        remedy=fix,
    )


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


@cache
def _evidence_index(engine: str) -> Any:
    path = RULES_FOLDER / f"{engine}.evidence.json"
    if not path.is_file():
        return None
    from .evidence import decode

    return decode(path.read_bytes())


def evidence(engine: str, rule: Rule, version: object, where: Range) -> str:
    """``release file:line`` of the code behind a rule at a release; the range's own reading if it was not located."""
    place = located(engine, rule.code, version)
    return f"{version} {place}" if place else f"{where.since} {where.evidence}"


def located(engine: str, code: str, version: object) -> str | None:
    """``file:line`` recorded of a rule, or of a computed default (``default max_num_seqs``), at a release."""
    index = _evidence_index(engine)
    if index is None:
        return None
    from .evidence import records

    place = records(index, code).get(str(version))
    return place.text if place else None

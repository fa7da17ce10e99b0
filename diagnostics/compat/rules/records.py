"""Combination rules of an engine's releases, as data.

The rules stand in ``<engine>/*.yaml`` beside this file, one record a rule, with ``terms.yaml``, the words their
conditions share. They are packed into ``<engine>.json`` (`pack`), which decodes in about a millisecond.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..releases.versions import parse, within

RULES_FOLDER = Path(__file__).parent

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


DIFFERING = ("when", "severity", "change", "consequence", "fix", "flags", "at")


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

    def held(self, version: object) -> Rule | None:
        """The rule as a release has it: with the one range that holds there, and what differs in it; None without one."""
        at = parse(str(version))
        where = next((r for r in self.versions if within(at, r.since, r.until)), None)
        if where is None:
            return None
        differs = {name: value for name in DIFFERING if (value := getattr(where, name)) is not None}
        return msgspec.structs.replace(self, versions=[where], **differs)


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


@cache
def load(engine: str) -> RuleSet:
    """The packed rules of an engine; an engine without rules has none."""
    path = RULES_FOLDER / f"{engine}.json"
    if not path.is_file():
        return RuleSet(generated_by="", rules=[], terms={}, defaults={})
    return msgspec.json.decode(path.read_bytes(), type=RuleSet)

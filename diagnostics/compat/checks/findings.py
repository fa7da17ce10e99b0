"""What the checker reports: edits, findings, and the verdict on one release."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Literal

import msgspec

from ....core.places import Place
from ..rules.records import Change, Severity

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


class Edit(msgspec.Struct, frozen=True):
    """One change `--fix` makes: drop, rename or set an option.

    `flag` is the canonical spelling ("--swap-space"), or an environment variable's name; `kind` says what happens to it. For "set" and
    "rename" `value` is the new value (None keeps the old one; True stands for a bare flag); an `open` one holds what only
    a run can tell, so that a person has to write it.
    """

    kind: Literal["unset", "rename", "set"]
    flag: str
    to: str | None = None
    value: str | bool | None = None
    safe: bool = True
    open: bool = False


class Finding(msgspec.Struct, frozen=True):
    """One thing that happens to this configuration at one release.

    `stops` says that the release would not come up because of it; `depends_on` names the facts that
    were missing, in which case nothing is certain.
    """

    code: str
    severity: Severity
    change: Change
    message: str
    place: Place
    flags: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    fix: str | None = None
    evidence: str | None = None
    depends_on: tuple[str, ...] = ()
    stops: bool = False
    edits: tuple[Edit, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The finding in the published JSON shape."""
        return {
            "code": self.code,
            "severity": self.severity,
            "change": self.change,
            "flags": list(self.flags),
            "env": list(self.env),
            "place": {"file": self.place.file, "line": self.place.line, "column": self.place.column},
            "message": self.message,
            "fix": self.fix,
            "evidence": self.evidence,
            "depends_on": list(self.depends_on),
        }


class Result(msgspec.Struct, frozen=True):
    """The verdict on one configuration at one target release."""

    input: str
    engine: str
    start: str | None
    target: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def starts(self) -> bool | None:
        """Whether that release would come up: False if something stops it, None if that depends."""
        stopping = [finding for finding in self.findings if finding.stops]
        if any(not finding.depends_on for finding in stopping):
            return False
        return None if stopping else True

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The facts that would settle an undecided verdict, in order of first mention."""
        if self.starts is not None:
            return ()
        return tuple(dict.fromkeys(fact for f in self.findings if f.stops for fact in f.depends_on))

    def as_dict(self) -> dict[str, Any]:
        """The result in the published JSON shape."""
        return {
            "input": self.input,
            "engine": self.engine,
            "from": self.start,
            "to": self.target,
            "starts": self.starts,
            "depends_on": list(self.depends_on),
            "notes": list(self.notes),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def no_such(
    message: str,
    place: Place,
    flags: tuple[str, ...],
    *,
    fix: str | None,
    evidence: str,
    edits: tuple[Edit, ...] = (),
) -> Finding:
    """FL-01: a name that no option has, so that the release does not start."""
    return Finding(
        "FL-01",
        "error",
        "unknown",
        message,
        place,
        flags,
        fix=fix,
        evidence=evidence,
        stops=True,
        edits=edits,
    )


def without(result: Result, ignored: Set[str]) -> Result:
    """The result without the findings of codes that are ignored, or of `CODE:NAME` about one option or variable.

    What keeps the release from starting is told all the same.
    """
    kept = tuple(
        finding
        for finding in result.findings
        if finding.stops
        or ignored.isdisjoint([finding.code, *(f"{finding.code}:{n}" for n in finding.flags + finding.env)])
    )
    if len(kept) == len(result.findings):
        return result
    note = f"ignored, as asked: {len(result.findings) - len(kept)}"
    return msgspec.structs.replace(result, findings=kept, notes=(*result.notes, note))


def at_or_above(findings: Sequence[Finding], level: Severity) -> list[Finding]:
    """The findings whose severity is `level` or worse."""
    floor = SEVERITIES.index(level)
    return [finding for finding in findings if SEVERITIES.index(finding.severity) >= floor]


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings without repeats, worst first, then by place and code."""
    unique = dict.fromkeys(findings)
    return tuple(
        sorted(
            unique,
            key=lambda f: (-SEVERITIES.index(f.severity), f.place.line, f.place.column, f.code),
        )
    )

"""Results as workflow commands, which GitHub shows beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from ..checks.findings import Finding, Result

LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def render(results: Sequence[Result]) -> str:
    """One `::error file=...` line a finding."""
    return "\n".join(_line(result, finding) for result in results for finding in result.findings)


def _line(result: Result, finding: Finding) -> str:
    where = {"file": finding.place.file, "line": finding.place.line, "col": finding.place.column}
    where["title"] = f"{finding.code} {result.engine} {result.target}"
    properties = ",".join(
        f"{key}={_property(str(value))}" for key, value in where.items() if value is not None
    )
    text = finding.message + (f" Fix: {finding.fix}" if finding.fix else "")
    return f"::{LEVELS[finding.severity]} {properties}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

"""Results as Markdown tables, for a pull request's comment."""

from __future__ import annotations

from collections.abc import Sequence

from ..checks.findings import Finding, Result
from .text import counts, verdict


def render(results: Sequence[Result]) -> str:
    """One section a result, with a table of its findings."""
    return "\n\n".join(_section(result) for result in results)


def _section(result: Result) -> str:
    way = f"{result.start} → {result.target}" if result.start else result.target
    lines = [
        f"### `{result.input}`: {result.engine} {way}: {verdict(result)}",
        "",
        counts(result.findings) + ".",
    ]
    lines += [f"Note: {note}" for note in result.notes]
    if result.findings:
        lines += ["", "| | code | option | what happens | fix | place |", "|-|-|-|-|-|-|"]
        lines += [_row(finding) for finding in result.findings]
    return "\n".join(lines)


def _row(finding: Finding) -> str:
    names = " ".join(f"`{name}`" for name in (*finding.flags, *finding.env))
    depends = f" (depends on {', '.join(finding.depends_on)})" if finding.depends_on else ""
    cells = [
        finding.severity,
        f"{finding.code} {finding.change}",
        names,
        finding.message + depends,
        finding.fix or "",
        str(finding.place),
    ]
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

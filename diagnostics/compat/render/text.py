"""Results for people: grouped by input and target, worst first, with a summary line."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

import click

from ..checks.findings import SEVERITIES, Finding, Result

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def render(results: Sequence[Result], width: int = 100) -> str:
    """Every result, then one line that counts them. Sentences are folded to `width` columns; headings and words are not."""
    blocks = [_result(result, width) for result in results]
    return "\n\n".join(
        [*blocks, "\n".join([summary(results), *_wrapped(" ".join(hints(results)), width, 0)])]
    )


def hints(results: Sequence[Result]) -> list[str]:
    """What would settle more: the release it comes from, and the facts that findings depend on."""
    told = []
    if any(result.start is None and result.engine == "vllm" for result in results):
        told.append("Changed defaults are told with --from.")
    facts = {fact: None for result in results for finding in result.findings for fact in finding.depends_on}
    of_model = [fact.removeprefix("model.") for fact in facts if fact.startswith("model.")]
    if of_model:
        told.append(
            f"Tell facts of the model with --model, as in --model {of_model[0]}=VALUE, or its config.json."
        )
    if any(fact.split(".")[0] == "device" for fact in facts):
        told.append("Name the accelerator with --gpu.")
    return told


def verdict(result: Result) -> str:
    """Whether that release comes up, in words."""
    if result.starts is None:
        return "depends on " + ", ".join(result.depends_on)
    return "starts" if result.starts else "does not start"


def counts(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning`."""
    found = Counter(finding.severity for finding in findings)
    parts = [
        f"{found[level]} {level if level == 'info' or found[level] == 1 else level + 's'}"
        for level in reversed(SEVERITIES)
        if found[level]
    ]
    return ", ".join(parts) or "nothing to report"


def summary(results: Sequence[Result]) -> str:
    """One line over all results."""
    findings = [finding for result in results for finding in result.findings]
    # Several servers may have one name: as many as one target judged.
    seen = Counter((result.input, result.target) for result in results)
    inputs = sum({name: count for (name, _), count in seen.items()}.values())
    what = f"{inputs} configuration{'s' if inputs != 1 else ''}, {len(results)} verdict{'s' if len(results) != 1 else ''}"
    return click.style(f"{what}: {counts(findings)}.", bold=True)


def _result(result: Result, width: int) -> str:
    colour = {True: "green", False: "red", None: "yellow"}[result.starts]
    way = f"{result.start} -> {result.target}" if result.start else result.target
    head = (
        click.style(result.input, bold=True)
        + f"  {result.engine} {way}: "
        + click.style(verdict(result), fg=colour, bold=True)
    )
    notes = (line for note in result.notes for line in _wrapped(f"note: {note}", width, 2))
    lines = [head, *notes]
    for finding in result.findings:
        lines += ["", *_finding(finding, width)]
    return "\n".join(lines)


def _finding(finding: Finding, width: int) -> list[str]:
    label = click.style(f"{finding.severity:<7}", fg=COLOURS[finding.severity], bold=True)
    names = " ".join([*finding.flags, *finding.env])
    lines = [f"  {label} {finding.code}  {finding.change}  {names}".rstrip()]
    lines += _wrapped(finding.message, width)
    if finding.fix:
        lines += _wrapped(f"fix: {finding.fix}", width)
    if finding.depends_on:
        lines += _wrapped(f"depends on: {', '.join(finding.depends_on)}", width)
    tail = f"{finding.place}" + (f"  [{finding.evidence}]" if finding.evidence else "")
    return [*lines, *(click.style(line, dim=True) for line in _wrapped(tail, width))]


def _wrapped(text: str, width: int, indent: int = 10) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(
        text, width, initial_indent=pad, subsequent_indent=pad, break_long_words=False, break_on_hyphens=False
    )

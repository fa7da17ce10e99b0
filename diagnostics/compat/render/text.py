"""Results for people: grouped by input and target, worst first, with a summary line."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

import click
import msgspec

from ....core.places import Place
from ..checks.findings import SEVERITIES, Finding, Result

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def render(results: Sequence[Result], width: int = 100) -> str:
    """Every result, then one line that counts them. Sentences are folded to `width` columns; headings and words are not.

    Of several configurations, a changed default that several rely on is told once, and each has a line at the end.
    """
    several = len({result.input for result in results}) > 1
    shared = _shared(results) if several else {}
    blocks = [_result(result, width, shared) for result in results]
    if shared:
        every = list(dict.fromkeys(result.input for result in results))
        told = [_together(finding, _which(inputs, every), width) for finding, inputs in shared.values()]
        blocks.append("\n\n".join([click.style("Of several configurations", bold=True), *told]))
    lines = [_line(result) for result in results] if several else []
    ending = [*lines, summary(results), *_wrapped(" ".join(hints(results)), width, 0)]
    return "\n\n".join([*blocks, "\n".join(ending)])


Shared = dict[Finding, tuple[Finding, list[str]]]


def _placeless(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, place=Place("", 0, 0), edits=())


def _shared(results: Sequence[Result]) -> Shared:
    """The changed defaults that several configurations rely on, and which do."""
    found: Shared = {}
    for result in results:
        for finding in result.findings:
            if finding.change == "changed_default":
                _, inputs = found.setdefault(_placeless(finding), (finding, []))
                inputs += [result.input] if result.input not in inputs else []
    return {key: told for key, told in found.items() if len(told[1]) > 1}


def _which(some: list[str], every: list[str]) -> str:
    """Which of all configurations, in the fewest names."""
    others = [name for name in every if name not in some]
    if not others:
        return f"of all {len(every)}"
    return f"of all but {', '.join(others)}" if len(others) < len(some) else f"of {', '.join(some)}"


def _together(finding: Finding, which: str, width: int) -> str:
    *lines, _ = _finding(msgspec.structs.replace(finding, evidence=None), width)
    told = which + (f"  [{finding.evidence}]" if finding.evidence else "")
    return "\n".join([*lines, *(click.style(line, dim=True) for line in _wrapped(told, width))])


def _line(result: Result) -> str:
    """A configuration's verdict in one line."""
    told = f"{result.input} {result.target}: {_styled(result)}"
    return f"{told} ({counts(result.findings)})" if result.findings else told


def _styled(result: Result) -> str:
    colour = {True: "green", False: "red", None: "yellow"}[result.starts]
    return click.style(verdict(result), fg=colour, bold=True)


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


def _result(result: Result, width: int, shared: Shared) -> str:
    way = f"{result.start} -> {result.target}" if result.start else result.target
    head = click.style(result.input, bold=True) + f"  {result.engine} {way}: " + _styled(result)
    notes = (line for note in result.notes for line in _wrapped(f"note: {note}", width, 2))
    lines = [head, *notes]
    own = [finding for finding in result.findings if _placeless(finding) not in shared]
    for finding in own:
        lines += ["", *_finding(finding, width)]
    elsewhere = len(result.findings) - len(own)
    if elsewhere:
        lines += [
            "",
            f"  and {elsewhere} changed default{'s' if elsewhere > 1 else ''} of several, told below",
        ]
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

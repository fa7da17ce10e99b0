"""The diagnosis for a terminal: the verdict in the first line, then what it stands on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..diagnose.model import DEFAULT_AT_FAULT, Change, Proof, Report, Verdict, flag

_NAMES = {
    "output_tokens_per_s": ("output", "tokens/s"),
    "goodput_requests_per_s": ("goodput", "requests/s"),
    "ttft_p50_ms": ("first token p50", "ms"),
    "ttft_p99_ms": ("first token p99", "ms"),
    "tpot_mean_ms": ("time per token", "ms"),
    "itl_p99_ms": ("between tokens p99", "ms"),
    "itl_max_ms": ("longest gap between tokens", "ms"),
    "preemptions": ("preemptions", ""),
    "kv_gib": ("KV cache", "GiB"),
    "kv_tokens": ("KV cache", "tokens"),
    "usable_gib": ("usable memory", "GiB"),
}


def render(report: Report) -> str:
    """The whole report as plain text."""
    return "\n".join(_lines(report)) + "\n"


def headline(verdict: Verdict) -> str:
    """One line: the knob, its value now and next, and the change it is worth; or why there is none."""
    if verdict.knob is None:
        name = "no knob is wrong" if verdict.confidence != "thin" else "no verdict"
        if verdict.bottleneck not in ("none",):
            name = f"no knob is wrong ({verdict.bottleneck})"
        return f"{name}: {verdict.why}"
    verb = {"raise": "raise", "lower": "lower", "on": "turn on", "off": "turn off"}.get(
        verdict.direction or "", "set"
    )
    best = _best(verdict.predicted)
    told = f": {change_text(*best)}" if best else ""
    return (
        f"{verb} {verdict.knob} ({flag(verdict.knob)}) from {_value(verdict.before)} to {_value(verdict.after)}{told} "
        f"[{verdict.bottleneck}, {verdict.confidence}]"
    )


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield headline(verdict)
    yield ""
    yield report.title
    yield f"bottleneck: {verdict.bottleneck}; default at fault: {DEFAULT_AT_FAULT.get(verdict.bottleneck, 'none')}"
    if verdict.knob is not None:
        yield f"why: {verdict.why}."
        yield f"how: {_spelled(verdict)}"
    if verdict.advice:
        yield f"also: {verdict.advice}."
    if verdict.predicted:
        yield f"predicted by {_source(report)}:"
        for name, change in verdict.predicted.items():
            yield f"  {change_text(name, change)}"
    yield from _section("contradictions", report.contradictions)
    yield from _alternatives(report.alternatives)
    yield from _section(
        "limits",
        [f"{limit.name}: {number(limit.value)} {limit.unit}: {limit.why}" for limit in report.limits],
    )
    yield from _memory(report.memory)
    yield from _section("evidence used", report.evidence)
    yield from _section("assumptions", report.assumptions)
    yield from _section("flags", [f"{f['code']} {f['severity']}: {f['message']}" for f in report.flags])


def _source(report: Report) -> str:
    if report.before is None:
        return "arithmetic on the figures above"
    how = (
        "step times of the model and device"
        if report.verdict.confidence == "simulated"
        else "step times fitted from the evidence"
    )
    return f"two replays of the scheduler, as it is and turned, with {how}"


def _spelled(verdict: Verdict) -> str:
    """The option as a command line takes it."""
    assert verdict.knob is not None
    name = flag(verdict.knob)
    if verdict.knob == "num_speculative_tokens":
        inner = f'{{"num_speculative_tokens": {verdict.after}, ...}}'
        return f"--speculative-config '{inner}'" if verdict.after else "remove --speculative-config"
    if verdict.after is True:
        return name
    if verdict.after is False:
        return f"remove {name}, or --no-{name.removeprefix('--')}"
    return f"{name} {verdict.after}"


def _best(predicted: Mapping[str, Change]) -> tuple[str, Change] | None:
    """The figure that changes most."""
    rows = [(name, change) for name, change in predicted.items() if change.before > 0 and change.after > 0]
    if not rows:
        return next(iter(predicted.items()), None)
    return max(
        rows,
        key=lambda row: (
            max(row[1].after / row[1].before, row[1].before / row[1].after) if _better(*row) else 0
        ),
    )


def _better(name: str, change: Change) -> bool:
    falls = name.endswith("_ms") or name == "preemptions"
    return change.after < change.before if falls else change.after > change.before


def change_text(name: str, change: Change) -> str:
    """`output 54 to 310 tokens/s (range 217 to 403)`."""
    label, unit = _NAMES.get(name, (name, ""))
    return (
        f"{label} {number(change.before)} to {number(change.after)} {unit} "
        f"(range {number(change.low)} to {number(change.high)})"
    )


def number(value: float) -> str:
    """Three significant digits, thousands with commas."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _value(value: Any) -> str:
    return (
        {True: "on", False: "off", None: "unset"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )


def _alternatives(proofs: tuple[Proof, ...]) -> Iterator[str]:
    if not proofs:
        return
    yield ""
    yield "other knobs, replayed (best first):"
    for proof in proofs:
        told = proof.proposal
        verdict = "gains" if proof.gain > 0.03 else "loses" if proof.gain < -0.03 else "nothing to gain"
        best = _best(proof.predicted)
        shown = f"; {change_text(*best)}" if best and verdict == "gains" else ""
        yield f"  {told.knob} {_value(told.before)} to {_value(told.after)} ({told.bottleneck}): {verdict}{shown}"


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    if not memory:
        return
    rows = [f"{label}: {size:.2f} GiB" for label, size in memory.get("rows_gib", {}).items()]
    rows += [f"{name}: {value}" for name, value in memory.items() if name not in ("rows_gib", "source")]
    yield from _section(f"memory ({memory['source']})", rows)


def _section(title: str, rows: Any) -> Iterator[str]:
    listed = list(rows)
    if not listed:
        return
    yield ""
    yield f"{title}:"
    for row in listed:
        yield f"  {row}"

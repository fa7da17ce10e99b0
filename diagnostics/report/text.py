"""The diagnosis for a terminal: the verdict in the first line, then what it stands on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..diagnose.model import DEFAULT_AT_FAULT, Change, Limit, Proof, Report, Verdict, flag

_NAMES = {
    "output_tokens_per_s": ("output", "tokens/s"),
    "goodput_requests_per_s": ("goodput", "requests/s"),
    "ttft_p50_ms": ("first token p50", "ms"),
    "ttft_p99_ms": ("first token p99", "ms"),
    "tpot_mean_ms": ("time per token", "ms"),
    "itl_p99_ms": ("between tokens p99", "ms"),
    "itl_max_ms": ("longest gap between tokens", "ms"),
    "e2e_mean_ms": ("whole request", "ms"),
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
        if verdict.bottleneck in ("kv_does_not_fit", "refused"):
            name = "it does not start"
        elif verdict.bottleneck != "none":
            name = f"no knob is wrong ({verdict.bottleneck})"
        sure = " [within the error]" if verdict.within_error else ""
        return f"{name}: {verdict.why}{sure}"
    verb = {"raise": "raise", "lower": "lower", "on": "turn on", "off": "turn off"}.get(
        verdict.direction or "", "set"
    )
    best = _best(verdict.predicted, verdict.telling)
    told = f": {change_text(*best)}" if best else ""
    sure = f"{verdict.confidence}, within the error" if verdict.within_error else verdict.confidence
    return (
        f"{verb} {verdict.knob} ({flag(verdict.knob)}) from {value_text(verdict.before)} to {value_text(verdict.after)}{told} "
        f"[{verdict.bottleneck}, {sure}]"
    )


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield headline(verdict)
    yield ""
    yield report.title
    yield from about_lines(report)
    yield f"bottleneck: {verdict.bottleneck}; {fault_text(report)}"
    if verdict.knob is not None:
        yield f"why: {verdict.why}."
        yield f"how: {spelled(verdict)}"
    if verdict.advice:
        yield f"also: {verdict.advice}."
    if verdict.predicted:
        yield f"predicted by {_source(report)}:"
        for name, change in verdict.predicted.items():
            yield f"  {change_text(name, change)}"
    if verdict.at_the_ends:
        yield f"error: {verdict.at_the_ends}."
    yield from _section("contradictions", report.contradictions)
    yield from _alternatives(report.alternatives)
    yield from _section("limits", limit_lines(report.limits))
    yield from _memory(report.memory)
    yield from _section("evidence used", report.evidence)
    yield from _section("assumptions", report.assumptions)
    yield from _section("flags", [f"{f['code']} {f['severity']}: {f['message']}" for f in report.flags])


def fault_text(report: Report) -> str:
    """Which of the engine's three mechanisms stands behind it, and whether its default or a setting is at fault."""
    mechanism = DEFAULT_AT_FAULT.get(report.verdict.bottleneck, "none")
    knob = report.verdict.knob
    if mechanism != "none" and report.by_hand:
        return f"mechanism: {mechanism}, {knob} as the configuration sets it"
    return f"default at fault: {mechanism}"


def about_lines(report: Report) -> list[str]:
    """The load, the engine's release and whether the targets are kept, a line each."""
    told = report.about
    lines = [f"load: {told['load']}"] if "load" in told else []
    if "version" in told:
        lines.append(f"engine: {told['engine']} {told['version']}")
    return [*lines, *slo_lines(report.slo)]


def slo_lines(slo: Mapping[str, Any]) -> list[str]:
    """Whether the load as it is keeps its targets, by how many requests, at what error, and the rule."""
    if not slo:
        return []
    verdict = "kept" if slo["met"] else "missed"
    line = (
        f"SLO {slo['targets']}: {verdict} as it is; {slo['good_share']:.1%} of the requests keep it, goodput "
        f"{number(slo['goodput_requests_per_s'])} requests/s"
    )
    if "good_share_range" in slo:
        low, high = slo["good_share_range"]
        line += f"; {low:.1%} to {high:.1%} with steps {slo['error_percent']:g} % slower or faster"
        line += ": this turns within the error of the prediction" if slo["within_error"] else ""
    if "good_share_after_start" in slo:
        line += (
            f"; of those after the first {slo['started_at_once']:,}, which start at once, "
            f"{slo['good_share_after_start']:.1%}"
        )
    return [line, f"rule: {slo['rule']}"]


_LIMITS = {
    "tpot_floor_ms": "no token comes faster than {} ms",
    "ttft_floor_ms": "one first token in twenty takes at least {} ms",
    "weights_read_ms": "reading the weights takes {} ms",
    "sequences_held": "{} sequences fit at once",
    "output_ceiling_tokens_per_s": "no more than about {} output tokens/s",
    "speculation_pays_up_to": "speculation pays up to {} sequences at once",
}


def limit_lines(limits: Sequence[Limit]) -> list[str]:
    """Floors and ceilings a line each; then where the steps' time goes and who waits for what, in a line each."""
    lines = []
    shares, waits = [], []
    for limit in limits:
        if limit.name.startswith("step_share_"):
            shares.append(f"{limit.name.removeprefix('step_share_').replace('_', ' ')} {limit.value:.0%}")
        elif limit.name.startswith("waiting_"):
            waits.append(f"{limit.value:.0%} of the time {limit.why.partition(': ')[2]}")
        else:
            told = _LIMITS.get(limit.name, f"{limit.name}: {{}} {limit.unit}").format(number(limit.value))
            lines.append(f"{told}: {limit.why}")
    if shares:
        lines.append(f"a step's time goes to {', '.join(shares)}")
    if waits:
        lines.append(f"somebody waits: {'; '.join(waits)}")
    return lines


def memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """Where the device's memory goes, and what the cache holds."""
    rows = [f"{label}: {size:.2f} GiB" for label, size in memory.get("rows_gib", {}).items() if size]
    if tokens := memory.get("kv_tokens"):
        each = f" at {memory['bytes_per_token'] / 1024:.0f} KiB each" if "bytes_per_token" in memory else ""
        rows.append(f"the cache holds {tokens:,} tokens{each}")
    if concurrency := memory.get("max_concurrency"):
        rows.append(f"that is {concurrency:g} requests of max_model_len")
    if missing := memory.get("missing_gib"):
        rows.append(f"{missing:.2f} GiB are missing")
    known = ("rows_gib", "source", "kv_tokens", "bytes_per_token", "max_concurrency", "missing_gib", "fits")
    return rows + [f"{name}: {value}" for name, value in memory.items() if name not in known]


def _source(report: Report) -> str:
    if report.before is None:
        return "arithmetic on the figures above"
    how = (
        "step times of the model and device"
        if report.verdict.confidence == "simulated"
        else "step times fitted from the evidence"
    )
    return f"two replays of the scheduler, as it is and turned, with {how}"


def spelled(verdict: Verdict) -> str:
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


def _best(predicted: Mapping[str, Change], telling: str | None = None) -> tuple[str, Change] | None:
    """The figure that counts most in the gain; without one that changes most for the better."""
    if telling is not None and telling in predicted:
        return telling, predicted[telling]
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


def label_text(name: str) -> tuple[str, str]:
    """A predicted figure's name and unit as a reader sees them."""
    return _NAMES.get(name, (name, ""))


def change_text(name: str, change: Change) -> str:
    """`output 54 to 310 tokens/s (range 217 to 403)`; with both ranges where both are known."""
    label, unit = label_text(name)
    unit = f" {unit}" if unit else ""
    return f"{label} {number(change.before)} to {number(change.after)}{unit} (range {range_text(change)})"


def range_text(change: Change) -> str:
    """`217 to 403`; `50 to 58, then 217 to 403` where the figure as it is has a range too."""
    turned = f"{number(change.low)} to {number(change.high)}"
    if change.before_range is None:
        return turned
    return f"{' to '.join(number(end) for end in change.before_range)}, then {turned}"


def number(value: float) -> str:
    """Three significant digits, thousands with commas."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def value_text(value: Any) -> str:
    """A knob's value as a reader sees it."""
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
        yield (
            f"  {told.knob} {value_text(told.before)} to {value_text(told.after)} ({told.bottleneck}): "
            f"{proof.worth}{_shown(proof)}"
        )


def _shown(proof: Proof) -> str:
    """The figure that tells most of a turn that does something; of a trade what it costs too."""
    best = _best(proof.predicted, proof.telling)
    if best is None or proof.worth == "nothing to gain":
        return ""
    cost = _cost(proof.predicted) if proof.worth == "gains one thing for another" else None
    return f"; {change_text(*best)}" + (f", but {change_text(*cost)}" if cost else "")


def _cost(predicted: Mapping[str, Change]) -> tuple[str, Change] | None:
    """The figure that a turn makes worst."""
    worse = [row for row in predicted.items() if row[1].before > 0 and row[1].after > 0 and not _better(*row)]
    return max(worse, key=lambda row: abs(math.log(row[1].after / row[1].before)), default=None)


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    if memory:
        yield from _section(f"memory ({memory['source']})", memory_lines(memory))


def _section(title: str, rows: Any) -> Iterator[str]:
    listed = list(rows)
    if not listed:
        return
    yield ""
    yield f"{title}:"
    for row in listed:
        yield f"  {row}"

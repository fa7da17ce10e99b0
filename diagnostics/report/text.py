"""The diagnosis for a terminal: the verdict in the first line, then what it stands on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..compat.releases.table import option_of
from ..diagnose.figures import amount, falls, label_text, moved_text, number
from ..diagnose.model import (
    DEFAULT_AT_FAULT,
    Change,
    Limit,
    Proof,
    Report,
    Verdict,
    beside_texts,
    value_text,
)
from ..simulate import PART_NAMES

_BOTTLENECKS = {
    "kv_capacity": "the KV cache is full",
    "kv_does_not_fit": "the KV cache does not fit",
    "weights_do_not_fit": "the weights do not fit",
    "refused": "the release refuses an option",
    "preemption": "sequences are evicted and computed again",
    "admission_cap": "all slots are taken",
    "token_budget": "the tokens of each step are spent",
    "prefill_interference": "prompts hold up other requests' tokens",
    "repeated_prefill": "shared prefixes are computed again",
    "weight_bandwidth": "weights are read",
    "kv_bandwidth": "the KV cache is read",
    "compute": "arithmetic",
    "communication": "devices exchange their parts",
    "kernel_launch": "kernels are launched one by one",
    "host": "the host works and the device waits",
    "speculation": "drafts that are not accepted",
    "context_length": "requests are longer than the configuration admits",
    "offered_load": "more load than one server carries",
}


def render(report: Report) -> str:
    """The whole report as plain text."""
    return "\n".join(_lines(report)) + "\n"


def headline(verdict: Verdict) -> str:
    """One line: the knob, its value now and next, and the change it is worth; or why there is none."""
    if verdict.knob is None:
        sure = f" [{', '.join(doubts)}]" if (doubts := _doubts(verdict)) else ""
        return f"{_without_knob(verdict)}: {verdict.why}{sure}"
    verb = {"raise": "raise", "lower": "lower", "on": "turn on", "off": "turn off"}.get(
        verdict.direction or "", "set"
    )
    best = _best(verdict.predicted, verdict.telling)
    told = f": {change_text(*best)}" if best else ""
    if best and (price := _price(verdict.predicted)):
        told += f", but {price}"
    sure = ", ".join(filter(None, [verdict.confidence, *_doubts(verdict)]))
    turned = f"{verdict.knob} from {value_text(verdict.before)} to {value_text(verdict.after)}"
    return f"{verb} {', '.join([turned, *beside_texts(verdict.beside)])}{told} [{sure}]"


MAIN = ("ttft_p50_ms", "ttft_p99_ms", "itl_p99_ms", "tpot_mean_ms", "output_tokens_per_s")
CLEARLY = 1.25  # times worse: worth a word in one line


def _price(predicted: Mapping[str, Change]) -> str:
    """The main figure that gets clearly worse, the one that does most; empty where none does."""
    rows = [(_times_worse(name, predicted[name]), name) for name in MAIN if name in predicted]
    times, name = max(rows, default=(0.0, ""))
    return moved_text(name, predicted[name].before, predicted[name].after) if times >= CLEARLY else ""


def _times_worse(name: str, change: Change) -> float:
    before, after = max(change.before, 1.0), max(change.after, 1.0)  # below a millisecond nothing matters
    return after / before if falls(name) else before / after


def _doubts(verdict: Verdict) -> list[str]:
    """What a reader of one line must know of how sure it is."""
    told = ["within the error"] if verdict.within_error else []
    beside = verdict.unexplained and verdict.unexplained not in verdict.why
    return [*told, "not all that is seen is explained"] if beside else told


def _without_knob(verdict: Verdict) -> str:
    if verdict.bottleneck in ("kv_does_not_fit", "weights_do_not_fit", "refused"):
        return "it does not start"
    if verdict.bottleneck == "offered_load" or verdict.missed:
        return "no knob alone is enough"
    if verdict.confidence == "thin":
        return "no verdict"
    if verdict.bottleneck in ("weight_bandwidth", "compute"):
        return "the target is out of reach"
    return "no knob is wrong" + (
        f" ({_BOTTLENECKS[verdict.bottleneck]})" if verdict.bottleneck != "none" else ""
    )


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield headline(verdict)
    yield ""
    yield report.title
    yield from about_lines(report)
    yield from cause_lines(report)
    if verdict.knob is not None:
        yield f"why: {verdict.why}."
        yield f"how: {spelled(verdict)}"
    if verdict.unexplained not in verdict.why:
        yield f"but: {verdict.unexplained}."
    if verdict.advice:
        yield f"also: {verdict.advice}."
    yield from _predicted(report)
    if verdict.at_the_ends:
        yield f"error: {verdict.at_the_ends}."
    yield from _section("contradictions", report.contradictions)
    yield from _alternatives(report.alternatives)
    yield from _section("limits", limit_lines(report.limits))
    yield from _memory(report.memory)
    yield from _section("evidence used", report.evidence)
    yield from _section("assumptions", report.assumptions)
    yield from _section("flags", flag_lines(report))


def flag_lines(report: Report) -> list[str]:
    """What the release does to the options, but what the verdict already says."""
    told = [flag for flag in report.flags if flag["message"] not in report.verdict.why]
    return [f"{flag['code']} {flag['severity']}: {flag['message']}" for flag in told]


def cause_lines(report: Report) -> list[str]:
    """The bottleneck in words, and which of the engine's three mechanisms stands behind it, where one does.

    A setting is told apart from the engine's default.
    """
    bottleneck = report.verdict.bottleneck
    if bottleneck == "none":
        return []
    lines = [f"bottleneck: {bottleneck} ({_BOTTLENECKS[bottleneck]})"]
    mechanism = DEFAULT_AT_FAULT.get(bottleneck, "none")
    if mechanism != "none" and report.by_hand:
        lines.append(f"mechanism: {mechanism}, {report.verdict.knob} as the configuration sets it")
    elif mechanism != "none":
        by = f", by {report.verdict.knob} as it is by default" if report.verdict.knob else ""
        lines.append(f"default at fault: {mechanism}{by}")
    return lines


def about_lines(report: Report) -> list[str]:
    """What the evidence is not of, the load, the engine's release and whether the targets are kept, a line each."""
    told = report.about
    lines = [f"{part}: {told[part]}" for part in ("evidence", "load") if part in told]
    if "version" in told:
        lines.append(f"engine: {told['engine']} {told['version']}")
    elif "judged" in told:
        lines.append(f"engine: {told['engine']}: {told['judged']}")
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
    if "good_share_with_start" in slo:
        line += (
            f"; {slo['good_share_with_start']:.1%} with the start counted, at which all clients come at once"
        )
    return [line, f"rule: {slo['rule']}"]


_LIMITS = {
    "tpot_floor_ms": "no token comes faster than {} ms",
    "ttft_floor_ms": "the latest first tokens take at least {} ms",
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
            shares.append(f"{PART_NAMES[limit.name.removeprefix('step_share_')]} {limit.value:.0%}")
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


def memory_title(memory: Mapping[str, Any]) -> str:
    """`memory of each of 2 devices (vllm 0.18.0)`."""
    devices = memory.get("devices", 1)
    return f"memory{f' of each of {devices} devices' if devices > 1 else ''} ({memory['source']})"


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
    known = (
        "rows_gib", "source", "devices", "kv_tokens", "bytes_per_token", "max_concurrency", "missing_gib", "fits"
    )  # fmt: skip
    return rows + [f"{name}: {value}" for name, value in memory.items() if name not in known]


def spelled(verdict: Verdict) -> str:
    """The options as a command line takes them."""
    return " ".join(_option(knob, value) for knob, value in verdict.turned.items())


def _option(knob: str, value: Any) -> str:
    name = option_of(knob)
    if knob == "num_speculative_tokens":
        inner = f'{{"num_speculative_tokens": {value}, ...}}'
        return f"--speculative-config '{inner}'" if value else "remove --speculative-config"
    if value is True:
        return name
    if value is False:
        return f"remove {name}, or --no-{name.removeprefix('--')}"
    return f"{name} {value}"


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
    return change.after < change.before if falls(name) else change.after > change.before


def change_text(name: str, change: Change) -> str:
    """`output 54 -> 310 tokens/s (217 to 403)`: before, after, and what after may be."""
    label, unit = label_text(name)
    unit = f" {unit}" if unit else ""
    text = f"{label} {amount(name, change.before)} -> {amount(name, change.after)}{unit}"
    return text if change.low == change.high else f"{text} ({_span(name, change.low, change.high)})"


def range_text(name: str, change: Change) -> str:
    """`217 to 403`; `50 to 58 -> 217 to 403` where the figure as it is has a range too."""
    turned = _span(name, change.low, change.high)
    return turned if change.before_range is None else f"{_span(name, *change.before_range)} -> {turned}"


def _span(name: str, low: float, high: float) -> str:
    return f"{amount(name, low)} to {amount(name, high)}"


def _predicted(report: Report) -> Iterator[str]:
    """The figures as it is and turned, with what they span at the ends of the error."""
    rows = report.verdict.predicted or report.as_it_is
    if report.before is None:
        told = "; ".join(change_text(*row) for row in rows.items())
        if told:
            yield f"by arithmetic on the figures above: {told}"
        return
    how = {
        "simulated": "the model's and device's step times",
        "fitted": "step times fitted from the evidence",
    }.get(report.steps, "assumed step times")
    turned = bool(report.verdict.predicted)
    yield f"replayed with {how}{_error(report)}:"
    heads = ["", "as it is", "within", *(["turned", "within"] if turned else [])]
    cells = [heads, *(_row(name, change, turned) for name, change in rows.items())]
    widths = [max(len(row[place]) for row in cells) for place in range(len(heads))]
    for label, *values in cells:
        told = "  ".join(value.rjust(wide) for value, wide in zip(values, widths[1:], strict=True))
        yield f"  {label.ljust(widths[0])}  {told}".rstrip()


def _error(report: Report) -> str:
    percent = report.error_percent
    return f", and with all of them {percent:g} % shorter and longer" if percent else ""


def _row(name: str, change: Change, turned: bool) -> list[str]:
    label, unit = label_text(name)
    before = "" if change.before_range is None else _span(name, *change.before_range)
    cells = [f"{label}, {unit}" if unit else label, amount(name, change.before), before]
    return [*cells, amount(name, change.after), _span(name, change.low, change.high)] if turned else cells


def _alternatives(proofs: tuple[Proof, ...]) -> Iterator[str]:
    if not proofs:
        return
    yield ""
    yield "other knobs, replayed (best first):"
    for proof in proofs:
        yield f"  {proof.proposal.text}: {proof.worth}"
        if proof.worth != "nothing to gain" and (changed := moved(proof)):
            yield f"    {changed}"


_SHOWN = (
    "ttft_p50_ms", "ttft_p99_ms", "itl_p99_ms", "output_tokens_per_s", "goodput_requests_per_s", "good_share",
    "served_share", "preemptions",
)  # fmt: skip


def moved(proof: Proof) -> str:
    """The figures that a turn moves by more than a fiftieth, for better or worse."""
    parts = []
    for name in _SHOWN:
        change = proof.predicted.get(name)
        if change is not None and abs(change.after - change.before) > 0.02 * abs(change.before):
            parts.append(moved_text(name, change.before, change.after))
    return ", ".join(parts)


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    if memory:
        yield from _section(memory_title(memory), memory_lines(memory))


def _section(title: str, rows: Any) -> Iterator[str]:
    listed = list(rows)
    if not listed:
        return
    yield ""
    yield f"{title}:"
    for row in listed:
        yield f"  {row}"

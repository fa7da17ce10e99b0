"""Bench results as text for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..results import SATURATED_TTFT_MS, Distribution, Result
from .policies import Comparison, PolicyResult, describe

_LATENCIES = (
    ("first token (TTFT)", "ttft_ms"),
    ("per output token (TPOT)", "tpot_ms"),
    ("between tokens (ITL)", "itl_ms"),
    ("whole request", "e2e_ms"),
)


def print_result(
    console: Console,
    result: Result,
    title: str,
    errors: dict[str, str] | None = None,
    server: dict[str, Any] | None = None,
) -> None:
    """One run: counts, rates, latencies, goodput, what the server says of itself and what failed."""
    console.print(title, style="bold", highlight=False, markup=False)
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in [*_facts(result), *_server_facts(server or {})]:
        facts.add_row(name, value)
    console.print(facts)
    _print_latencies(console, result)
    for kind, count in result.errors.items():
        sample = (errors or {}).get(kind, "")
        told = Text(f"{count} failed: {kind}", style="red")
        console.print(told.append(f" {sample}", style="default"), highlight=False)


def _print_latencies(console: Console, result: Result) -> None:
    """A row for each latency; in a terminal too narrow for whole figures a paragraph for each."""
    names = ("mean", "p50", "p90", "p99", "max")
    found: list[tuple[str, Distribution | None]] = [
        (label, getattr(result, name)) for label, name in _LATENCIES
    ]
    rows = [(label, [f"{ms:,.1f}" for ms in _five(spread)]) for label, spread in found if spread is not None]
    widest = max((len(cell) for _, cells in rows for cell in cells), default=0)
    if console.width < max(map(len, ("milliseconds", *(label for label, _ in rows)))) + 5 * (widest + 2):
        for label, cells in rows:
            told = ", ".join(f"{name} {cell}" for name, cell in zip(names, cells, strict=True))
            console.print(f"{label}: {told} ms", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("milliseconds")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for label, cells in rows:
        table.add_row(label, *cells)
    console.print(table)


def _five(spread: Distribution) -> tuple[float, ...]:
    return (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)


def _facts(result: Result) -> list[tuple[str, str]]:
    facts = [
        (
            "requests",
            f"{result.completed:,} completed, {result.failed:,} failed, in {result.duration_s:.1f} s",
        ),
        ("tokens", f"{result.input_tokens:,} in, {result.output_tokens:,} out"),
        (
            "throughput",
            f"{result.throughput_output_tokens_per_s:,.1f} output tok/s, "
            f"{result.throughput_total_tokens_per_s:,.1f} total tok/s, "
            f"{result.throughput_requests_per_s:.2f} requests/s",
        ),
    ]
    if result.targets.any:
        facts.append(
            (
                f"goodput ({result.targets.describe()})",
                f"{result.goodput_requests_per_s:.2f} requests/s, "
                f"{result.goodput_output_tokens_per_s:,.1f} output tok/s; {result.good_share:.1%} of the requests keep "
                f"them: {'kept' if result.keeps_targets else 'missed'}",
            )
        )
    if result.kv is not None:
        hit = "" if result.kv.hit_rate is None else f", prefix hits {result.kv.hit_rate:.1%}"
        facts.append(
            (
                "KV cache",
                f"peak {result.kv.peak_used:,} of {result.kv.blocks:,} blocks, waste {result.kv.waste:.1%}{hit}",
            )
        )
    if result.preemptions is not None:
        facts.append(("evictions", f"{result.preemptions:,}"))
    if result.saturated:
        late = result.ttft_ms is not None and result.ttft_ms.mean > SATURATED_TTFT_MS
        why = (
            f"requests wait longer than {SATURATED_TTFT_MS / 1e3:g} s on average for their first token"
            if late
            else "more arrives than is done, and the queue grows for as long as requests arrive"
        )
        facts.append(("saturated", f"yes: {why}"))
    return facts


def _server_facts(server: dict[str, Any]) -> list[tuple[str, str]]:
    shares = (("KV cache at its fullest", "kv_usage_peak"), ("prefix hits", "prefix_hit_rate"))
    return [(label, f"{server[key]:.1%}") for label, key in shares if server.get(key) is not None]


def policy_line(run: PolicyResult) -> str:
    """One policy's figures in a line."""
    result = run.result
    told = [f"{run.policy}: {result.completed:,} requests in {result.duration_s:.1f} s"]
    told.append(f"{result.throughput_output_tokens_per_s:,.1f} output tok/s")
    if result.ttft_ms:
        told.append(f"first token {result.ttft_ms.mean:,.0f} ms")
    if result.itl_ms:
        told.append(f"p99 between tokens {result.itl_ms.p99:,.0f} ms")
    return ", ".join(told)


COLUMNS = ("policy", "done", "tok/s", "TTFT mean", "TTFT p99", "ITL mean", "ITL p50", "ITL p99")


def side_by_side(comparison: Comparison) -> list[tuple[str, ...]]:
    """A row for each policy under COLUMNS."""
    return [
        (
            run.policy,
            f"{run.result.completed}",
            f"{run.result.throughput_output_tokens_per_s:,.1f}",
            *(milliseconds(run.result.ttft_ms, name) for name in ("mean", "p99")),
            *(milliseconds(run.result.itl_ms, name) for name in ("mean", "p50", "p99")),
        )
        for run in comparison.runs
    ]


def findings(comparison: Comparison) -> list[str]:
    """What stands below the policies' figures: what they are, the ratios between them and what they show."""
    most = max((run.requests for run in comparison.runs), default=0)
    return [
        "requests done, output tokens a second, latencies in ms",
        *(
            f"{run.policy} plays the first {run.requests} requests: fewer wait, so its first tokens come sooner"
            for run in comparison.runs
            if run.requests < most
        ),
        *(f"  {name}: {value:.2f}" for name, value in comparison.ratios().items()),
        *describe(comparison),
    ]


def milliseconds(spread: Distribution | None, name: str, digits: int = 0) -> str:
    """One statistic of a distribution (`mean`, `p99`, ...) for a table; a dash where nothing was measured."""
    return "-" if spread is None else f"{getattr(spread, name):,.{digits}f}"

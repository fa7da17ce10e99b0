"""Simulations as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ...core.arithmetic.memory import GIB
from ...core.workload import Workload
from ..bench.render import milliseconds, print_result
from ..results import Result, Targets
from .lessons import Lesson
from .prepare import Prepared
from .published import Compared, Errors
from .recorder import PART_NAMES, StepLog, why_waiting
from .replay import Replay
from .sweep import Highest, Row


def print_replay(console: Console, prepared: Prepared, replay: Replay, workload: Workload) -> None:
    """One simulation: figures, where step time went, who waited for what, memory and what is assumed."""
    print_result(console, replay.whole, f"{workload.name}: {prepared.title}")
    if told := _arrivals(workload, replay):
        console.print(told, style="dim", highlight=False)
    if replay.result.targets.any:
        console.print(f"rule: {replay.result.targets.rule()}", style="dim", highlight=False)
        if told := _out_of_reach(prepared, replay.result.targets, workload):
            console.print(told, style="bold", highlight=False)
    band = replay.result.error_band
    if band:
        console.print(
            f"expected error: time per token +-{band['tpot_percent']:g} %, first token +-{band['ttft_percent']:g} % "
            f"({band['source']})",
            style="dim",
            highlight=False,
        )
    _print_shares(console, replay.log)
    print_memory(console, prepared)
    for text in prepared.assumptions:
        console.print(f"assumed: {text}", style="dim", highlight=False)


def _arrivals(workload: Workload, replay: Replay) -> str:
    """What the way in which requests arrive does to the figures."""
    told, result = workload.summary(), replay.result
    if told.concurrency and told.concurrency > 1:
        text = f"{min(told.concurrency, told.requests):,} clients start all at once, and wait for each other's prompts"
        later = replay.later
        if later is None or later.ttft_ms is None:
            return text
        text += f"; first token after that: p50 {later.ttft_ms.p50:,.1f}, p99 {later.ttft_ms.p99:,.1f} ms"
        return f"{text}, and {later.good_share:.1%} keep the targets" if later.targets.any else text
    if told.rate:
        arriving_s = (told.arrivals - 1) / told.rate
        return (
            f"{workload.arrives} arrive at {told.rate:.3g} a second for {arriving_s:.1f} s; rates are over the {result.duration_s:.1f} s "
            "until the last one has ended, with the server still filling and then running empty"
        )
    return ""


def _out_of_reach(prepared: Prepared, targets: Targets, workload: Workload) -> str:
    """That no load keeps a target between tokens: one sequence alone does not."""
    told = workload.summary()
    floor_ms = prepared.fastest_token_ms(told.input_tokens_mean + told.output_tokens_mean / 2)
    asked = min((ms for ms in (targets.tpot_ms, targets.itl_ms) if ms is not None), default=floor_ms)
    if asked >= floor_ms:
        return ""
    return f"out of reach: {asked:g} ms a token; one sequence alone takes {floor_ms:.1f} ms, most of it to read the weights"


def _print_shares(console: Console, log: StepLog) -> None:
    shares = sorted(log.shares().items(), key=lambda item: -item[1])
    told = ", ".join(f"{PART_NAMES[name]} {share:.0%}" for name, share in shares if share >= 0.01)
    console.print(f"step time: {told}", highlight=False)
    if log.blocked:
        waits = sorted(log.blocked.items(), key=lambda item: -item[1])
        told = ", ".join(f"{seconds:.1f} s as {why_waiting(name)}" for name, seconds in waits)
        console.print(f"somebody waited: {told}", highlight=False)


def print_memory(console: Console, prepared: Prepared) -> None:
    """Where the device's memory goes, in one line, and what the cache holds."""
    budget, each = prepared.budget, f" of each of {prepared.devices} devices" if prepared.devices > 1 else ""
    console.print(f"memory{each} ({budget.rule}): {budget.arithmetic()}", highlight=False)
    console.print(
        f"KV cache: {budget.kv_tokens:,} tokens in {budget.num_blocks:,} blocks of {budget.block_size}, "
        f"{budget.bytes_per_token / 1024:.0f} KiB a token; {budget.max_concurrency:.1f} sequences of "
        f"{budget.max_model_len:,} tokens ({budget.one_request_bytes / GIB:.2f} GiB each)",
        highlight=False,
    )


def print_title(console: Console, prepared: Prepared, load: str) -> None:
    """What is replayed, on what, under which load."""
    console.print(prepared.title, style="bold", highlight=False)
    console.print(f"load: {load}", highlight=False)


def print_rows(console: Console, rows: Sequence[Row], first: str) -> None:
    """A series of replays side by side."""
    names = (
        "output tok/s",
        "TTFT mean",
        "TTFT p99",
        "TPOT mean",
        "ITL p99",
        "ITL max",
        "evicted",
        "KV waste",
    )
    targets = next((row.result.targets for row in rows if row.result and row.result.targets.any), None)
    if targets is not None:
        names = ("keep the SLO", *names)
    labels = [row.label.removeprefix(f"{first}=") for row in rows]
    cells = [("does not run",) if row.result is None else _cells(row.result) for row in rows]
    if len(first) > max(map(len, labels)):
        console.print(f"by {first}:", highlight=False)
    table = _table(first, names, labels, cells)
    if _least_width(names, labels, cells) <= console.width:
        console.print(table)
    else:  # no terminal is too narrow for a figure a line
        for label, row in zip(labels, cells, strict=True):
            console.print(f"{first} {label}", style="bold", highlight=False)
            for name, cell in zip(names, row, strict=False):
                console.print(f"  {name}: {cell}", highlight=False)
    notes = (
        ["latencies in ms", "* requests pile up"]
        if any("*" in c for row in cells for c in row)
        else ["latencies in ms"]
    )
    console.print("; ".join(notes), style="dim")
    if targets is not None:
        console.print(f"SLO {targets.describe()}: {targets.rule()}", style="dim", highlight=False)
    for row in rows:
        if row.result is None:
            console.print(f"{row.label}: {row.reason}", highlight=False)


def _least_width(names: Sequence[str], labels: Sequence[str], cells: Sequence[tuple[str, ...]]) -> int:
    """Characters that a table needs whose headers are folded between words and whose figures are whole."""
    columns = [[row[place] for row in cells if place < len(row) > 1] for place in range(len(names))]
    widths = [
        max(map(len, [*name.split(), *column])) + 1 for name, column in zip(names, columns, strict=True)
    ]
    return max(map(len, [*labels, "values"])) + 1 + sum(widths)


def _table(
    first: str, names: Sequence[str], labels: Sequence[str], cells: Sequence[tuple[str, ...]]
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    # In a narrow terminal headers are folded, and no label or figure is cut.
    longest = max(map(len, labels), default=0)
    table.add_column(first if len(first) <= longest else "", min_width=longest, no_wrap=True)
    for place, name in enumerate(names):
        widths = [len(row[place]) for row in cells if place < len(row) > 1]
        table.add_column(name, justify="right", min_width=max(widths, default=0))
    for label, row in zip(labels, cells, strict=True):
        table.add_row(label, *row)
    return table


def _cells(result: Result) -> tuple[str, ...]:
    saturated = " *" if result.saturated else ""
    kept = (f"{result.good_share:.1%}",) if result.targets.any else ()
    return (
        *kept,
        f"{result.throughput_output_tokens_per_s:,.0f}{saturated}",
        milliseconds(result.ttft_ms, "mean"),
        milliseconds(result.ttft_ms, "p99"),
        milliseconds(result.tpot_ms, "mean", 1),
        milliseconds(result.itl_ms, "p99", 1),
        milliseconds(result.itl_ms, "max", 1),
        f"{result.preemptions or 0:,}",
        "-" if result.kv is None else f"{result.kv.waste:.1%}",
    )


def print_highest(console: Console, found: Highest) -> None:
    """The highest rate that holds, its range where steps are off by the declared error, and the rates that were tried."""
    print_rows(console, found.tried, "rate")
    if not found.rate_per_s:
        console.print(found.reason, style="bold", highlight=False)
        return
    told, full = f"holds up to {found.rate_per_s:.3g} {found.what}/s", found.capacity_per_s
    if found.range_per_s:
        low, high = found.range_per_s
        told += f" ({low:.3g} to {high:.3g} with all steps {found.error_percent:g} % slower or faster)"
    told += f"; a full server gets through {full:.3g}" if full and full > found.rate_per_s else ""
    console.print(told, style="bold", highlight=False)


def print_lesson(console: Console, lesson: Lesson) -> None:
    """An exercise: its table and its conclusions."""
    console.print(lesson.title, style="bold", highlight=False)
    console.print(lesson.setup, style="dim", highlight=False)
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(lesson.columns):
        table.add_column(name, justify="right" if place else "left")
    for row in lesson.rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console.print(table)
    for sentence in lesson.conclusions:
        console.print(f"- {sentence}", highlight=False)


def _setting(row: Compared) -> str:
    point = row.point
    model = point.model.rsplit("/", 1)[-1]
    return f"{point.hardware} {model} {point.precision} tp{point.tensor_parallel_size}"


def _compared_table(show_header: bool) -> Table:
    table = Table(box=None, pad_edge=False, show_header=show_header)
    table.add_column("in/out at once", min_width=18, no_wrap=True)
    for name in ("TTFT ms", "predicted", "error", "TPOT ms", "predicted", "error"):
        table.add_column(name, justify="right", min_width=max(len(name), 7), no_wrap=True)
    return table


def _compared_cells(row: Compared) -> tuple[str, ...]:
    point, result = row.point, row.result
    label = f"{point.input_tokens}/{point.output_tokens} x{point.concurrency}"
    if result is None or result.ttft_ms is None or result.tpot_ms is None:
        return label, *("-" * 6)
    return (
        label,
        f"{point.ttft_ms:,.0f}",
        f"{result.ttft_ms.mean:,.0f}",
        f"{row.ttft_error:+.0%}",
        f"{point.tpot_ms:.2f}",
        f"{result.tpot_ms.mean:.2f}",
        f"{row.tpot_error:+.1%}",
    )


def print_compared(console: Console, rows: Sequence[Compared], found: Errors) -> None:
    """Predictions beside measured points, under a line for each machine and model, and the errors over all of them."""
    console.print(_compared_table(show_header=True))
    settings: dict[str, list[Compared]] = {}
    for row in rows:
        settings.setdefault(_setting(row), []).append(row)
    for setting, members in settings.items():
        console.print(setting, style="dim", highlight=False)
        table = _compared_table(show_header=False)
        for row in members:
            table.add_row(*_compared_cells(row))
        console.print(table)
    told = [f"{found.points} unsaturated points"]
    if found.tpot_mean is not None and found.ttft_mean is not None:
        told[0] += (
            f": time per output token off by {found.tpot_mean:.1%}, time to first token by {found.ttft_mean:.1%} on average"
        )
    if found.saturated_worst_factor is not None:
        told.append(
            f"{found.saturated_points} saturated: first token within a factor {found.saturated_worst_factor:.2f}"
        )
    console.print("; ".join([*told, f"{found.unpredicted} not predicted"]), highlight=False)
    for row in rows:
        if row.result is None:
            console.print(
                f"{row.point.model} on {row.point.hardware}: {row.reason}", style="dim", highlight=False
            )

"""A check against real runs as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from .live import FIGURES, NOT_QUIET, WITHIN, LiveRow

_NAMES = dict(zip(FIGURES, ("output tok/s", "first token ms", "ITL p99 ms"), strict=True))
SLOWED = 0.05  # a machine that far from its sheet is worth a sentence


def print_live(console: Console, rows: Sequence[LiveRow]) -> None:
    """Predicted beside measured, a line for each policy and figure, and what is to be said of the machine."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("policy", "figure", "predicted", "measured", "spread", "error", ""):
        table.add_column(name, justify="left" if name in ("policy", "figure", "") else "right", no_wrap=True)
    for row in rows:
        for figure in FIGURES:
            table.add_row(
                row.policy if figure == FIGURES[0] else "",
                _NAMES[figure],
                f"{row.predicted[figure]:,.1f}",
                f"{median(row.measured(figure)):,.1f}",
                f"{row.spread(figure):.1%}",
                f"{row.error(figure):+.1%}",
                "not judged" if not row.quiet else "within" if row.holds(figure) else "outside",
            )
    console.print(table)
    console.print(
        f"measured: median of {max(len(row.runs) for row in rows)} runs; spread: half their range; within: "
        f"{WITHIN:.0%}, or the spread where that is larger",
        style="dim",
    )
    for sentence in remarks(rows):
        console.print(sentence, highlight=False)


def remarks(rows: Sequence[LiveRow]) -> list[str]:
    """How many predictions hold, and whether the machine was the one that the sheet describes."""
    judged = [row for row in rows if row.quiet]
    held = sum(row.holds(figure) for row in judged for figure in FIGURES)
    said = [f"{held} of {len(judged) * len(FIGURES)} predictions hold."] if judged else []
    if len(judged) < len(rows):
        loud = ", ".join(row.policy for row in rows if not row.quiet)
        said.append(f"Not judged: {loud}; the machine was not quiet. Repeat it when nothing else runs.")
    speeds = [run.speed for row in rows for run in row.runs if run.speed is not None]
    if speeds and abs(median(speeds) - 1) >= SLOWED:
        said.append(
            f"The machine ran at {median(speeds):.0%} of its sheet's speed ({min(speeds):.0%} to {max(speeds):.0%}): "
            "`engine calibrate` measures it again."
        )
        worst = max(
            abs(error) for row in rows for f in FIGURES if (error := row.error_at_speed(f)) is not None
        )
        said.append(f"At the speed it had, the largest error would be {worst:.0%}.")
    others = [run.others for row in rows for run in row.runs if run.others is not None]
    if others and max(others) >= NOT_QUIET:
        said.append(f"Other processes took up to {max(others):.0%} of the cores during a run.")
    return said

"""Small plots as inline SVG: lines and stacked areas over time, and percentiles before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH, HEIGHT = 720, 170
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 26


@dataclass(frozen=True, slots=True)
class Line:
    """One series over a shared horizontal axis; `fill` stacks it on the ones before."""

    label: str
    values: np.ndarray  # float64 [n]
    colour: str  # a class of the page's style sheet
    fill: bool = False


def over_time(
    title: str,
    unit: str,
    end_s: np.ndarray,
    lines: Sequence[Line],
    top: float | None = None,
    until_s: float | None = None,
) -> str:
    """A figure of series over simulated time, filled ones stacked, up to `top` and `until_s`. Empty for no data."""
    if not len(end_s):
        return ""
    stack = np.zeros(len(end_s))
    drawn = []
    highest = top or max(1e-9, _highest(lines))
    last_s = until_s or float(end_s[-1])
    x = _x(end_s, last_s)
    for line in lines:
        if line.fill:
            base, stack = stack, stack + line.values
            drawn.append(_area(x, base, stack, highest, line.colour))
        else:
            drawn.append(_path(x, line.values, highest, line.colour))
    axes = _axes(f"{_short(highest)} {unit}".rstrip(), f"{_short(last_s)} s")
    return _figure(title, lines, "".join(drawn) + axes)


def _highest(lines: Sequence[Line]) -> float:
    filled = [line.values for line in lines if line.fill]
    stacked = float(np.sum(filled, axis=0).max()) if filled else 0.0
    return max([stacked, *(float(line.values.max()) for line in lines if not line.fill)])


def _x(at: np.ndarray, last: float) -> np.ndarray:
    return LEFT + (WIDTH - LEFT - RIGHT) * at / max(last, 1e-9)


def _y(value: np.ndarray, highest: float) -> np.ndarray:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * np.clip(value / highest, 0, 1)


def _points(x: np.ndarray, values: np.ndarray, highest: float) -> str:
    return " ".join(f"{at:.1f},{y:.1f}" for at, y in zip(x, _y(values, highest), strict=True))


def _path(x: np.ndarray, values: np.ndarray, highest: float, colour: str) -> str:
    return f'<polyline class="{colour} line" points="{_points(x, values, highest)}"/>'


def _area(x: np.ndarray, base: np.ndarray, top: np.ndarray, highest: float, colour: str) -> str:
    upper = _points(x, top, highest)
    lower = " ".join(reversed(_points(x, base, highest).split(" ")))
    return f'<polygon class="{colour} area" points="{upper} {lower}"/>'


def _axes(highest: str, last: str) -> str:
    floor = HEIGHT - BOTTOM
    return (
        f'<path class="axis" d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 9}" text-anchor="end">{escape(highest)}</text>'
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(last)}</text>'
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """The percentiles of one latency in one replay, milliseconds."""

    label: str
    percentiles: tuple[tuple[str, float], ...]
    colour: str


def spreads(title: str, rows: Sequence[Spread]) -> str:
    """Percentiles of each row as marks on one logarithmic axis. Empty for no rows."""
    values = [max(ms, 0.01) for row in rows for _, ms in row.percentiles]
    if not values:
        return ""
    low, high = math.log10(min(values)), math.log10(max(values))
    span = max(high - low, 0.1)
    height = 30 * len(rows) + 30
    drawn = []
    for place, row in enumerate(rows):
        y = 20 + 30 * place
        marks = [
            (LEFT + 110 + (WIDTH - LEFT - RIGHT - 190) * (math.log10(max(ms, 0.01)) - low) / span, name, ms)
            for name, ms in row.percentiles
        ]
        drawn.append(f'<text x="4" y="{y + 4}">{escape(row.label)}</text>')
        drawn.append(
            f'<path class="{row.colour} line" d="M{marks[0][0]:.1f} {y}H{marks[-1][0]:.1f}"/>'
            + "".join(
                f'<circle class="{row.colour} dot" cx="{x:.1f}" cy="{y}" r="4"><title>{name} {ms:,.1f} ms</title></circle>'
                for x, name, ms in marks
            )
            + f'<text x="{marks[-1][0] + 8:.1f}" y="{y + 4}">{_short(marks[-1][2])} ms</text>'
        )
    names = ", ".join(name for name, _ in rows[0].percentiles)
    foot = f'<text x="{LEFT + 110}" y="{height - 6}">{names}; logarithmic</text>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{_svg(height, ''.join(drawn) + foot, title)}</figure>"


def _figure(title: str, lines: Sequence[Line], body: str) -> str:
    legend = " ".join(f'<span class="key {line.colour}">{escape(line.label)}</span>' for line in lines)
    return f"<figure><figcaption>{escape(title)} {legend}</figcaption>{_svg(HEIGHT, body, title)}</figure>"


def _svg(height: int, body: str, title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"

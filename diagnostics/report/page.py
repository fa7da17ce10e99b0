"""The diagnosis as one page of HTML that needs nothing beside itself: figures are inline SVG."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from ..diagnose.figures import amount, label_text
from ..diagnose.model import Change, Report, beside_texts, value_text
from ..results import Distribution
from ..simulate import Replay
from .svg import Line, Spread, over_time, spreads
from .text import (
    about_lines,
    cause_lines,
    flag_lines,
    headline,
    limit_lines,
    memory_lines,
    memory_title,
    moved,
    range_text,
    spelled,
)

BINS = 240


def render(report: Report) -> str:
    """The whole page."""
    parts = [
        *_verdict(report),
        _predicted(report),
        _plots(report),
        _alternatives(report),
        _list("Limits", limit_lines(report.limits)),
        _memory(report),
        _list("Evidence used", report.evidence),
        _list("Contradictions", report.contradictions),
        _list("Assumptions", report.assumptions),
        _list("Flags", flag_lines(report)),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>engine diagnose</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _verdict(report: Report) -> list[str]:
    """The first line, what was diagnosed, the marks, and the reasons."""
    verdict = report.verdict
    marks = (*cause_lines(report), f"confidence: {verdict.confidence}")
    parts = [
        f"<h1>{escape(headline(verdict))}</h1>",
        f'<p class="about">{escape(report.title)}</p>',
        *(f'<p class="about">{escape(line)}</p>' for line in about_lines(report)),
        f'<ul class="marks">{"".join(f"<li>{escape(mark)}</li>" for mark in marks)}</ul>',
    ]
    if verdict.knob is not None:
        parts.append(f"<p>{escape(_sentence(verdict.why))}</p>")
        parts.append(f"<p><b>How:</b> <code>{escape(spelled(verdict))}</code></p>")
    if verdict.unexplained not in verdict.why:
        parts.append(f"<p><b>But</b> {escape(_sentence(verdict.unexplained))}</p>")
    if verdict.at_the_ends:
        parts.append(f"<p><b>Error:</b> {escape(_sentence(verdict.at_the_ends))}</p>")
    if verdict.advice:
        parts.append(f"<p><b>Also:</b> {escape(_sentence(verdict.advice))}</p>")
    return parts


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _predicted(report: Report) -> str:
    """The figures as they are and, where a knob is turned, turned, with the range of the prediction."""
    turned = report.verdict.predicted
    if not turned:
        rows = "".join(_figure(name, change, "") for name, change in report.as_it_is.items())
        return _figures('<th class="n">as it is</th><th class="n">range</th>', rows)
    rows = "".join(
        _figure(name, change, f'<td class="n"><b>{amount(name, change.after)}</b></td>')
        for name, change in turned.items()
    )
    return _figures('<th class="n">as it is</th><th class="n">turned</th><th class="n">range</th>', rows)


def _figures(heads: str, rows: str) -> str:
    head = f"<tr><th>predicted</th>{heads}</tr>"
    return f'<div class="wide"><table>{head}{rows}</table></div>' if rows else ""


def _figure(name: str, change: Change, turned: str) -> str:
    label, unit = label_text(name)
    if not turned:  # the range is that of the figure as it is
        low, high = change.before_range or (change.before, change.before)
        change = replace(change, low=low, high=high, before_range=None)
    return (
        f'<tr><td>{escape(f"{label}, {unit}" if unit else label)}</td><td class="n">{amount(name, change.before)}</td>'
        f'{turned}<td class="n">{escape(range_text(name, change))}</td></tr>'
    )


def _plots(report: Report) -> str:
    """The replay as it is beside the turned one, on the same scales, and the latencies of both."""
    if report.before is None:
        return ""
    replays = [("as it is", report.before)] + ([("turned", report.after)] if report.after else [])
    drawn = [_replay(name, replay, _scale([r for _, r in replays])) for name, replay in replays]
    rows = "".join(figure for figures in zip(*drawn, strict=True) for figure in figures)
    grid = f'<div class="pair">{rows}</div>' if len(drawn) == 2 else rows
    return (
        f"<h2>The replays</h2>{grid}<h2>Latencies</h2>"
        f'<div class="spreads">{_latencies(report.before, report.after)}</div>'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """What all replays are drawn to: the highest step, the most requests, the longest time."""

    tokens: float
    requests: float
    until_s: float


def _scale(replays: list[Replay]) -> _Scale:
    """The largest of each that any of the replays shows, in its bins."""
    tokens = requests = 1.0
    until_s = 0.0
    for replay in replays:
        mean = _means(replay)[1]
        if len(mean["running"]):
            step = mean["decodes"] + mean["prefill_tokens"] + mean["padding"]
            tokens = max(tokens, float(step.max()))
            requests = max(requests, float(mean["running"].max()), float(mean["waiting"].max()))
            until_s = max(until_s, float(replay.log.column("end_s").max()))
    return _Scale(tokens, requests, until_s)


def _means(replay: Replay) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The ends of the bins in seconds, and each column's mean in them."""
    end_s, index = _bins(replay.log.column("end_s"))
    return end_s, {name: _mean(replay.log.column(name), index, len(end_s)) for name in _COLUMNS}


def _replay(name: str, replay: Replay, scale: _Scale) -> tuple[str, str, str]:
    """Each step's composition, the cache and the queue over simulated time, in bins of equal time."""
    end_s, mean = _means(replay)
    blocks = max(1, replay.result.kv.blocks if replay.result.kv else 1)
    composition = [
        Line("decode", mean["decodes"], "a", fill=True),
        Line("prefill", mean["prefill_tokens"], "b", fill=True),
    ]
    if mean["padding"].any():
        composition.append(Line("padding", mean["padding"], "c", fill=True))
    return (
        over_time(
            f"Tokens of a step, {name}",
            "",
            end_s,
            composition,
            top=scale.tokens,
            until_s=scale.until_s,
        ),
        over_time(
            f"KV cache in use, {name}",
            "%",
            end_s,
            (Line("blocks", 100 * mean["kv_blocks"] / blocks, "a"),),
            top=100.0,
            until_s=scale.until_s,
        ),
        over_time(
            f"Requests, {name}",
            "",
            end_s,
            (Line("running", mean["running"], "a"), Line("waiting", mean["waiting"], "b")),
            top=scale.requests,
            until_s=scale.until_s,
        ),
    )


_COLUMNS = ("decodes", "prefill_tokens", "padding", "kv_blocks", "running", "waiting")


def _bins(end_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the bins that hold steps, and the bin of each step."""
    if not len(end_s):
        return end_s, np.zeros(0, dtype=np.int64)
    width = max(float(end_s[-1]), 1e-9) / BINS
    raw = np.minimum((end_s / width).astype(np.int64), BINS - 1)
    used, index = np.unique(raw, return_inverse=True)
    return (used + 1) * width, index


def _mean(values: np.ndarray, index: np.ndarray, count: int) -> np.ndarray:
    sums = np.bincount(index, weights=values, minlength=count)
    return sums / np.maximum(np.bincount(index, minlength=count), 1)


def _latencies(before: Replay, after: Replay | None) -> str:
    figures = []
    for name, title in (
        ("ttft_ms", "Time to first token"),
        ("itl_ms", "Time between tokens"),
        ("tpot_ms", "Time per output token"),
    ):
        rows = []
        for label, replay, colour in (("as it is", before, "b"), ("turned", after, "a")):
            found: Distribution | None = getattr(replay.result, name) if replay is not None else None
            if found is not None:
                marks = (("p50", found.p50), ("p90", found.p90), ("p99", found.p99), ("max", found.max))
                rows.append(Spread(label, marks, colour))
        figures.append(spreads(title, rows))
    return "\n".join(figures)


def _alternatives(report: Report) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p.proposal.knob)}</code></td><td>{escape(value_text(p.proposal.before))} &rarr; "
        f"{escape(', '.join([value_text(p.proposal.after), *beside_texts(p.proposal.beside)]))}</td><td>{escape(p.proposal.bottleneck)}</td>"
        f"<td>{escape(p.worth)}</td><td>{escape(moved(p))}</td></tr>"
        for p in report.alternatives
    )
    head = "<tr><th>knob</th><th>turned</th><th>bottleneck</th><th>worth</th><th>predicted</th></tr>"
    table = f'<div class="wide others"><table>{head}{rows}</table></div>'
    return f"<h2>Other knobs, replayed (best first)</h2>{table}" if rows else ""


def _memory(report: Report) -> str:
    title = memory_title(report.memory).capitalize() if report.memory else ""
    return _list(title, memory_lines(report.memory)) if report.memory else ""


def _list(title: str, rows: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(row)}</li>" for row in rows)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>" if items else ""


_STYLE = """
:root { color-scheme: light dark; --a: #1668b8; --b: #c8590f; --c: #8a8a8a; --edge: #8884; --soft: #8881; }
@media (prefers-color-scheme: dark) { :root { --a: #6db3f2; --b: #f0a060; --c: #9a9a9a; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { max-width: 60rem; margin: .5rem 0; }
.about { opacity: .75; margin: 0; overflow-wrap: anywhere; }
.marks { display: flex; flex-wrap: wrap; gap: .5rem; margin: .8rem 0; padding: 0; list-style: none; }
.marks li { border: 1px solid var(--edge); border-radius: 1rem; padding: .05rem .7rem; font-size: .85rem; }
.spreads { max-width: 46rem; } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.2rem; }
figure { margin: .5rem 0; } figcaption { font-size: .88rem; } svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid var(--edge); padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
.wide td:last-child { min-width: 9rem; } .others td:last-child { min-width: 20rem; }
td.n, th.n { text-align: right; white-space: nowrap; }
th { font-weight: 600; } code { font-size: .92em; }
ul { padding-left: 1.2rem; margin: .3rem 0; } li { overflow-wrap: anywhere; }
.axis { fill: none; stroke: currentColor; stroke-opacity: .5; } .line { fill: none; stroke-width: 1.6; }
.a { stroke: var(--a); } .b { stroke: var(--b); } .c { stroke: var(--c); }
.area { stroke: none; opacity: .8; } .a.area, .a.dot { fill: var(--a); } .b.area, .b.dot { fill: var(--b); }
.c.area { fill: var(--c); }
.key { margin-left: .8rem; white-space: nowrap; } .key::before { content: "■ "; }
.key.a { color: var(--a); } .key.b { color: var(--b); } .key.c { color: var(--c); }
@media (max-width: 44rem) {
  .pair { grid-template-columns: 1fr; } td, th { padding-right: .5rem; } td.n, th.n { white-space: normal; }
  .wide td:last-child, .others td:last-child { min-width: 0; }
  .others table, .others tbody, .others tr, .others td { display: block; border: 0; padding: 0; }
  .others tr { border-bottom: 1px solid var(--edge); padding: .35rem 0; } .others th { display: none; }
}
@media print { body { max-width: none; font-size: 11px; padding: 0; } figure, table, li { break-inside: avoid; } }
"""

"""The diagnosis as one page of HTML that needs nothing beside itself: figures are inline SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np

from ..diagnose.model import DEFAULT_AT_FAULT, Report
from ..results import Distribution
from ..simulate import Replay
from .svg import Line, Spread, over_time, spreads
from .text import change_text, headline, number

BINS = 240


def render(report: Report) -> str:
    """The whole page."""
    verdict = report.verdict
    fault = DEFAULT_AT_FAULT.get(verdict.bottleneck, "none")
    parts = [
        f"<h1>{escape(headline(verdict))}</h1>",
        f"<p>{escape(report.title)}</p>",
        f"<p><b>{escape(verdict.bottleneck)}</b>; default at fault: {escape(fault)}. {escape(verdict.why)}. "
        f"{escape(verdict.advice)}</p>",
        _list("Predicted", (change_text(name, change) for name, change in verdict.predicted.items())),
        _plots(report),
        _alternatives(report),
        _list(
            "Limits",
            (f"{limit.name}: {number(limit.value)} {limit.unit}: {limit.why}" for limit in report.limits),
        ),
        _memory(report),
        _list("Evidence used", report.evidence),
        _list("Contradictions", report.contradictions),
        _list("Assumptions", report.assumptions),
        _list("Flags", (f"{flag['code']} {flag['severity']}: {flag['message']}" for flag in report.flags)),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>engine diagnose</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _plots(report: Report) -> str:
    parts = []
    for name, replay in (("as it is", report.before), ("turned", report.after)):
        if replay is not None:
            parts.append(f"<h2>The replay {name}</h2>" + _replay(replay))
    if report.before is not None:
        parts.append("<h2>Latencies</h2>" + _latencies(report.before, report.after))
    return "\n".join(parts)


def _replay(replay: Replay) -> str:
    """Each step's composition, the cache and the queue over simulated time, in bins of equal time."""
    log = replay.log
    end_s, index = _bins(log.column("end_s"))
    mean = {name: _mean(log.column(name), index, len(end_s)) for name in _COLUMNS}
    blocks = max(1, replay.result.kv.blocks if replay.result.kv else 1)
    return "\n".join(
        (
            over_time(
                "Tokens of a step",
                "tokens",
                end_s,
                (
                    Line("decode", mean["decodes"], "a", fill=True),
                    Line("prefill", mean["prefill_tokens"], "b", fill=True),
                    Line("padding", mean["padding"], "c", fill=True),
                ),
            ),
            over_time(
                "KV cache in use",
                "%",
                end_s,
                (Line("blocks", 100 * mean["kv_blocks"] / blocks, "a"),),
                top=100.0,
            ),
            over_time(
                "Requests",
                "",
                end_s,
                (Line("running", mean["running"], "a"), Line("waiting", mean["waiting"], "b")),
            ),
        )
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
        f"<tr><td>{escape(p.proposal.knob)}</td><td>{escape(str(p.proposal.before))}</td>"
        f"<td>{escape(str(p.proposal.after))}</td><td>{escape(p.proposal.bottleneck)}</td><td>{p.gain:+.2f}</td>"
        f"<td>{escape('; '.join(change_text(n, c) for n, c in p.predicted.items()))}</td></tr>"
        for p in report.alternatives
    )
    head = "<tr><th>knob</th><th>from</th><th>to</th><th>bottleneck</th><th>gain</th><th>predicted</th></tr>"
    return f"<h2>Other knobs, replayed</h2><table>{head}{rows}</table>" if rows else ""


def _memory(report: Report) -> str:
    rows = report.memory.get("rows_gib", {})
    told = [f"{label}: {size:.2f} GiB" for label, size in rows.items()]
    told += [f"{name}: {value}" for name, value in report.memory.items() if name != "rows_gib"]
    return _list("Memory", told)


def _list(title: str, rows: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(row)}</li>" for row in rows)
    return f"<h2>{title}</h2><ul>{items}</ul>" if items else ""


_STYLE = """
:root { color-scheme: light dark; --a: #1668b8; --b: #d2691e; --c: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 1.8rem; }
figure { margin: .6rem 0; } figcaption { font-size: .9rem; } svg { width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
table { border-collapse: collapse; font-size: .85rem; } td, th { border: 1px solid #8886; padding: .2rem .5rem; text-align: left; }
.axis { fill: none; stroke: currentColor; } .line { fill: none; stroke-width: 1.6; } .area { opacity: .75; }
.a { stroke: var(--a); } .b { stroke: var(--b); } .c { stroke: var(--c); }
.area { stroke: none; } .a.area, .a.dot { fill: var(--a); } .b.area, .b.dot { fill: var(--b); } .c.area { fill: var(--c); }
.key { margin-left: .8rem; } .key.a { color: var(--a); } .key.b { color: var(--b); } .key.c { color: var(--c); }
"""

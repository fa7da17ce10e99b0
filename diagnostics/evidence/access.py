"""This engine's own log: the options that it starts with, and each request's lengths and time in its access line."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.config import ServeConfig
from ...core.places import parse_scalar
from ...core.workload import RecordedTrace, Trace, TraceRow, Workload, WorkloadShape
from .model import Evidence, Figure, Setting

QUANTILES = (np.arange(100) + 0.5) / 100  # a distribution of lengths is told by these
# Share of the requests with a line; where more are still in the server, the lines do not tell the load.
UNLOGGED = 0.1
_ACCESS = re.compile(
    r"access .*\bstatus=200 duration_ms=(?P<ms>[\d.]+) .*\bprompt_tokens=(?P<prompt>\d+) "
    r"completion_tokens=(?P<answer>\d+)"
)


@dataclass(frozen=True, slots=True)
class Served:
    """A request that has its answer. ended_s: on the log's clock, in whole seconds."""

    ended_s: float
    took_s: float
    input_tokens: int
    output_tokens: int


def served(message: str, at_s: float | None) -> Served | None:
    """The request of an access line; None where the message is none, or of no generation."""
    found = _ACCESS.match(message)
    if found is None or at_s is None:
        return None
    prompt, answer = max(1, int(found["prompt"])), max(1, int(found["answer"]))
    return Served(at_s, float(found["ms"]) / 1e3, prompt, answer)


def own_settings(message: str, where: str) -> list[Setting]:
    """The options of `configuration model=... max_num_seqs=8`; those that the log keeps to itself are left out."""
    try:
        words = shlex.split(message.removeprefix("configuration "))
    except ValueError:
        return []
    told: Mapping[str, Any] = {
        name: parse_scalar(value) for name, equals, value in (word.partition("=") for word in words) if equals
    }
    return [
        Setting(name=name, value=value, source=where)
        for name, value in told.items()
        if name in ServeConfig.model_fields and value not in (None, "(set)")
    ]


def tell_served(evidence: Evidence, requests: Sequence[Served], source: str) -> None:
    """Adds the lengths and times of the requests of a log, and, where none is missing, the requests as they came."""
    if not requests:
        return
    where = f"{source}: {len(requests)} access lines"
    for name, values in (
        ("input_tokens", [request.input_tokens for request in requests]),
        ("output_tokens", [request.output_tokens for request in requests]),
        ("e2e_ms", [request.took_s * 1e3 for request in requests]),
    ):
        told = {"mean": np.mean(values), **{f"p{p}": np.quantile(values, p / 100) for p in (50, 90, 99)}}
        evidence.figures += [
            Figure(name=name, value=float(value), source=where, statistic=label)
            for label, value in told.items()
        ]
        if name != "e2e_ms":
            evidence.lengths[name] = tuple(round(v) for v in np.quantile(values, QUANTILES))
    last = evidence.samples[-1].values if evidence.samples else {}
    inside = last.get("running", 0.0) + last.get("waiting", 0.0)
    if inside > UNLOGGED * len(requests):
        evidence.notes.append(
            f"{where}, and {inside:g} requests still in the server: lengths are of those with a line, arrivals are not known"
        )
        return
    evidence.logged = _as_they_came(requests, source)


def _as_they_came(requests: Sequence[Served], source: str) -> Workload:
    """A trace. The log's clock has whole seconds: those that end within one are spread over it in the lines' order."""
    within, seen = Counter(request.ended_s for request in requests), Counter[float]()
    rows = []
    for request in requests:
        share = (seen[request.ended_s] + 0.5) / within[request.ended_s]
        seen[request.ended_s] += 1
        arrived = request.ended_s + share - request.took_s
        rows.append((arrived, request.input_tokens, request.output_tokens))
    start = min(rows)[0]
    trace = tuple(TraceRow(at - start, inputs, outputs) for at, inputs, outputs in sorted(rows))
    shape = WorkloadShape(arrival=Trace(kind="trace", file=source, requests=len(trace)))
    return Workload(source, shape, RecordedTrace("access log", trace))

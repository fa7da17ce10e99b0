"""Finds, reads and validates a workload, and says what it amounts to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ValidationError

from ..errors import ConfigError
from ..places import Document, Place, read_yaml
from ..wording import as_given, complaint, nearest
from .content import WorkloadRequest
from .generate import generate
from .lengths import Length
from .schema import Bursts, Class, Closed, Poisson, Sessions, Trace, WorkloadShape
from .traces import RecordedTrace, read_trace

PRESETS = Path(__file__).resolve().parents[2] / "presets" / "workloads"


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """What a load amounts to. Tokens are per request."""

    requests: int
    input_tokens_mean: float
    input_tokens_max: int
    output_tokens_mean: float
    output_tokens_max: int
    arrivals: int  # of requests, or of sessions, that have a time of their own
    rate: float | None  # of these a second; None for a closed loop
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """A load that can be played as often as wanted: `requests()` gives the same requests each time."""

    name: str
    shape: WorkloadShape
    trace: RecordedTrace | None = None

    def requests(self) -> Iterator[WorkloadRequest]:
        """The requests in order of arrival."""
        return generate(self.shape, self.trace)

    @property
    def concurrency(self) -> int | None:
        """Clients of a closed loop (for sessions: conversations at once); None where arrivals have times."""
        arrival = self.shape.arrival
        return arrival.concurrency if isinstance(arrival, Closed | Sessions | Trace) else None

    @property
    def arrives(self) -> Literal["requests", "sessions"]:
        """What has a time of arrival of its own."""
        return "sessions" if isinstance(self.shape.arrival, Sessions) else "requests"

    @property
    def count(self) -> int:
        """How many requests there are."""
        arrival = self.shape.arrival
        if isinstance(arrival, Sessions):
            return sum(1 for _ in self.requests())
        if isinstance(arrival, Trace):
            assert self.trace is not None  # load_workload read it
            return len(self.trace.rows[: arrival.requests])
        return arrival.requests

    def summary(self) -> WorkloadSummary:
        """Counts, lengths and rate, over all requests."""
        rows = [(r.input_tokens, r.output_tokens, r.arrival_s) for r in self.requests()]
        inputs, outputs = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
        times = [r[2] for r in rows if r[2] is not None]
        span = max(times, default=0.0) - min(times, default=0.0)
        return WorkloadSummary(
            requests=len(rows),
            input_tokens_mean=float(inputs.mean()),
            input_tokens_max=int(inputs.max()),
            output_tokens_mean=float(outputs.mean()),
            output_tokens_max=int(outputs.max()),
            arrivals=len(times),
            rate=(len(times) - 1) / span if span > 0 else None,
            concurrency=self.concurrency,
        )

    def busiest(self, requests: int) -> Workload:
        """Of a trace the so many requests in a row that arrive within the shortest time, under a name that says so."""
        assert self.trace is not None  # its rows are by arrival
        rows = self.trace.rows[: self.count]
        at_s = np.array([row.arrival_s for row in rows])
        start = int(np.argmin(at_s[requests - 1 :] - at_s[: len(at_s) - requests + 1]))
        stretch = rows[start : start + requests]
        kept = tuple(replace(row, arrival_s=row.arrival_s - stretch[0].arrival_s) for row in stretch)
        return replace(
            self,
            name=f"{self.name}, the busiest {requests:,} of its {len(rows):,} requests",
            trace=replace(self.trace, rows=kept),
        )

    def at_rate(self, rate: float) -> Workload:
        """The same requests arriving at `rate` a second: Poisson, or the trace played faster or slower."""
        arrival = self.shape.arrival
        if isinstance(arrival, Trace):
            natural = replace(self, shape=_with(self.shape, arrival, speed=1.0, concurrency=None))
            own = natural.summary().rate
            if own is None:
                raise ConfigError(f"{self.name}: a trace whose requests arrive all at once has no rate")
            return replace(self, shape=_with(self.shape, arrival, speed=rate / own, concurrency=None))
        if isinstance(arrival, Sessions):
            return replace(self, shape=_with(self.shape, arrival, rate=rate, concurrency=None))
        poisson = _made(Poisson, kind="poisson", rate=rate, requests=arrival.requests)
        return replace(self, shape=self.shape.model_copy(update={"arrival": poisson}))

    def at_concurrency(self, concurrency: int) -> Workload:
        """The same requests in a closed loop of so many clients."""
        arrival = self.shape.arrival
        if isinstance(arrival, Trace):
            return replace(self, shape=_with(self.shape, arrival, concurrency=concurrency))
        if isinstance(arrival, Sessions):
            return replace(self, shape=_with(self.shape, arrival, rate=None, concurrency=concurrency))
        closed = _made(Closed, kind="closed", concurrency=concurrency, requests=arrival.requests)
        return replace(self, shape=self.shape.model_copy(update={"arrival": closed}))

    def first(self, requests: int) -> Workload:
        """Only so many requests (for sessions: so many sessions)."""
        return replace(self, shape=_with(self.shape, self.shape.arrival, **{self.arrives: requests}))


def _with(shape: WorkloadShape, arrival: Any, **changes: Any) -> WorkloadShape:
    changed = _made(type(arrival), **{**arrival.model_dump(), **changes})
    return shape.model_copy(update={"arrival": changed})


def _made(form: type[BaseModel], /, **fields: Any) -> BaseModel:
    """Raises ConfigError."""
    try:
        return form.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(_say(error.errors()[0], None)) from error


def workload_names() -> list[str]:
    """Names of the workloads that ship with the package."""
    return sorted(file.stem for file in PRESETS.glob("*.yaml"))


def load_workload(source: str | Path | Mapping[str, Any]) -> Workload:
    """A workload from a YAML file, a preset's name, a trace file or a mapping.

    Raises ConfigError with file, line and column; EvidenceError for a trace that cannot be read.
    """
    if isinstance(source, Mapping):
        return _build("workload", Document("workload", source, {}), Path.cwd())
    path = Path(source)
    if not os.path.isfile(path):
        path = _preset(str(source))
    if path.suffix in (".csv", ".jsonl"):
        arrival = {"kind": "trace", "file": path.name}
        return _build(path.stem, Document(str(path), {"arrival": arrival}, {}), path.parent)
    return _build(path.stem, read_yaml(path), path.parent)


def _preset(text: str) -> Path:
    name = text.removesuffix(".yaml").removesuffix(".yml")
    if name in workload_names():
        return PRESETS / f"{name}.yaml"
    known = workload_names()
    raise ConfigError(f"{text}: no such workload{nearest(name, known)} (presets: {', '.join(known)})")


def _build(name: str, document: Document, folder: Path) -> Workload:
    try:
        shape = WorkloadShape.model_validate(_snake_keys(document.value))
    except ValidationError as error:
        lines = dict.fromkeys(_say(problem, document) for problem in error.errors())
        raise ConfigError("\n".join(lines)) from error
    trace = None
    if isinstance(shape.arrival, Trace):
        file = folder / shape.arrival.file
        if not os.path.isfile(file):
            place = document.place(["arrival", "file"])
            raise ConfigError(f"{place}: arrival.file: {file}: no such file")
        trace = read_trace(file, shape.arrival.format, shape.arrival.requests)
        _refuse_bad_trace(trace, file)
    return Workload(name, shape, trace)


def _refuse_bad_trace(trace: RecordedTrace, file: Path) -> None:
    if trace.block_tokens < 1 and any(row.hash_ids for row in trace.rows):
        raise ConfigError(f"{file}: has hash_ids but its header does not say block_tokens")


def _snake_keys(value: Any) -> Any:
    """Keys in snake case, at every depth."""
    if isinstance(value, Mapping):
        return {str(key).replace("-", "_"): _snake_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_snake_keys(item) for item in value]
    return value


_VARIANTS: dict[str, type[BaseModel]] = {
    "closed": Closed,
    "poisson": Poisson,
    "bursts": Bursts,
    "sessions": Sessions,
    "trace": Trace,
}


def _say(problem: Any, document: Document | None) -> str:
    """One line for one pydantic finding: place, key, what was given, what is allowed."""
    path = [part for part in problem["loc"] if part not in _VARIANTS or part == problem["loc"][0]]
    if problem["type"] == "union_tag_invalid":
        path.append("kind")
    place = document.place(path) if document else Place("workload")
    key = ".".join(str(part) for part in path)
    if problem["type"] == "extra_forbidden":
        return f"{place}: {key}: unknown key{_nearest_field(problem, path)}"
    text = complaint(problem)
    if problem["type"] == "union_tag_not_found":
        text = f"kind is needed, one of {', '.join(_VARIANTS)}; `engine config schema --of workload` has every key"
    if problem["type"] == "union_tag_invalid":
        kind = problem["ctx"]["tag"]
        text = f"no kind {kind!r}; known are {', '.join(_VARIANTS)}{nearest(kind, _VARIANTS)}"
    shown = "" if isinstance(problem["input"], Mapping) else as_given(problem["input"])
    return f"{place}: {key + ': ' if key else ''}{text}{shown}"


def _nearest_field(problem: Any, path: list[Any]) -> str:
    variant = next((part for part in problem["loc"] if part in _VARIANTS), None)
    owner: type[BaseModel] = WorkloadShape
    if "mix" in path[:-1]:
        owner = Class
    if any(part in ("input_tokens", "output_tokens", "turns") for part in path[:-1]):
        owner = Length
    elif variant is not None and len(path) > 1:
        owner = _VARIANTS[variant]
    known = list(owner.model_fields)
    return nearest(str(path[-1]), known, f"; known: {', '.join(known)}")

"""What is known about a running engine, each figure with where it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ...core.workload import Workload

Trend = Literal["rising", "falling", "steady", "low", "high"]

# What a server has though nobody asks it anything.
_STANDING = (
    "kv_tokens", "kv_blocks", "kv_memory_gib", "weights_memory_gib", "max_concurrency", "gpu_memory_used",
    "prefix_hit_rate",
)  # fmt: skip


# Of a load, which may only be planned.
_ASKED = ("input_tokens", "output_tokens", "concurrency", "request_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One observed figure in canonical name and unit (`ttft_ms`, `kv_usage` as a share, `output_tokens_per_s`).

    statistic: "mean", "p50" ... "max", "total", or "" where the source does not say.
    qualifier: the circumstance the source names (`before`, `during_other_prefill`), or "".
    value is None where only a word was given; `trend` holds the word.
    """

    name: str
    value: float | None
    source: str
    statistic: str = ""
    qualifier: str = ""
    trend: Trend | None = None
    at_s: float | None = None  # on the log's own clock
    derived: bool = False  # computed from others, not read
    between: tuple[float, float] | None = None  # the bucket of a histogram that the value is interpolated in

    @property
    def label(self) -> str:
        """The name with statistic and qualifier: `ttft_ms p99 (during_other_prefill)`."""
        text = f"{self.name} {self.statistic}".strip()
        return f"{text} ({self.qualifier})" if self.qualifier else text

    @property
    def shown(self) -> str:
        """The value, or its word; of an interpolated one the bucket, too."""
        if self.value is None:
            return str(self.trend)
        if self.between is None:
            return f"{self.value:.4g}"
        low, high = self.between
        return f"about {self.value:.3g} ({low:g} to {high:g})" if high < float("inf") else f"above {low:g}"


def described(figures: Iterable[Figure]) -> list[str]:
    """For a report: a line for each name and source, with its statistics: `ttft_ms mean 24, p50 20 [metrics.txt]`."""
    lines: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in figures:
        lines.setdefault((figure.name, figure.qualifier, figure.source), []).append(figure)
    told = []
    for (name, qualifier, source), found in lines.items():
        label = f"{name} ({qualifier})" if qualifier else name
        parts = [
            f"{figure.statistic} {figure.shown}" if figure.statistic else figure.shown for figure in found
        ]
        told.append(f"{label}{': ' if len(parts) > 1 else ' '}{', '.join(parts)} [{source}]")
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened once: a start-up failure, a preemption warning, a warning of the engine."""

    code: str  # "kv_does_not_fit", "no_kv_memory", "preempted", "graphs_captured", ...
    message: str
    source: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A configuration value that the evidence reveals."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of periodic statistics: canonical names to values."""

    at_s: float | None
    values: dict[str, float]
    source: str

    def get(self, name: str) -> float | None:
        return self.values.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadHints:
    """What is said about the load; None is not told. Lengths in tokens."""

    concurrency: int | None = None
    request_rate_per_s: float | None = None
    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    shared_prefix: bool | None = None
    dataset: str | None = None
    text: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two things that cannot both be true."""

    what: str
    sources: tuple[str, ...]


@dataclass(slots=True)
class Evidence:
    """Everything that was read, in the order it was read."""

    figures: list[Figure] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    load: list[LoadHints] = field(default_factory=list)
    sweep: list[dict[str, float]] = field(default_factory=list)  # one row a load level, canonical names
    gpu: str | None = None
    gpu_count: int | None = None
    engine: str | None = None
    version: str | None = None
    trace: Workload | None = None
    logged: Workload | None = None  # the requests of an access log, as they came
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)  # quantiles, evenly spaced, by name
    notes: list[str] = field(default_factory=list)  # what could not be used, and why

    def merge(self, other: Evidence) -> Evidence:
        """Both together; where both name the GPU, engine or version, the first one stays."""
        return Evidence(
            self.figures + other.figures,
            self.samples + other.samples,
            self.events + other.events,
            self.settings + other.settings,
            self.load + other.load,
            self.sweep + other.sweep,
            self.gpu or other.gpu,
            self.gpu_count or other.gpu_count,
            self.engine or other.engine,
            self.version or other.version,
            self.trace or other.trace,
            self.logged or other.logged,
            {**other.lengths, **self.lengths},
            self.notes + other.notes,
        )

    def find(self, name: str, statistic: str | None = None, qualifier: str | None = None) -> Figure | None:
        """The best figure of a name: read before derived, without qualifier before with, latest last.

        statistic and qualifier None accept any.
        """
        fitting = [
            figure
            for figure in self.figures
            if figure.name == name
            and (statistic is None or figure.statistic == statistic)
            and (qualifier is None or figure.qualifier == qualifier)
        ]
        if not fitting:
            return None
        order = {id(figure): place for place, figure in enumerate(self.figures)}
        return min(fitting, key=lambda f: (f.derived, bool(f.qualifier), f.value is None, -order[id(f)]))

    def value(self, name: str, statistic: str | None = None) -> float | None:
        """The value of the best figure of a name; None where none has a number."""
        figure = self.find(name, statistic)
        return None if figure is None else figure.value

    def trend(self, name: str) -> Trend | None:
        """The word that some source uses for a figure, or the direction of the samples."""
        for figure in self.figures:
            if figure.name == name and figure.trend is not None:
                return figure.trend
        return self._sampled_trend(name)

    def series(self, name: str) -> list[float]:
        """The values of a name over the samples that have it."""
        return [sample.values[name] for sample in self.samples if name in sample.values]

    def event(self, code: str) -> Event | None:
        """The last event of a code."""
        return next((event for event in reversed(self.events) if event.code == code), None)

    def setting(self, name: str) -> Any:
        """The value that the evidence reveals for a knob; None where it says nothing."""
        return next((setting.value for setting in reversed(self.settings) if setting.name == name), None)

    def hint(self, name: str) -> Any:
        """The first thing said about the load under that name."""
        return next((value for hints in self.load if (value := getattr(hints, name)) is not None), None)

    @property
    def recorded(self) -> Workload | None:
        """The requests as they came: of a trace that is given, or of a log where nobody names another pace."""
        paced = self.hint("request_rate_per_s") or self.hint("concurrency")
        return self.trace or (None if paced else self.logged)

    @property
    def idle(self) -> bool:
        """Whether a server was looked at and is not seen to have done anything."""
        if self.value("running") is None or self.load or self.sweep or self.trace or self.logged:
            return False
        return not any(f.value or f.trend for f in self.figures if f.name not in _STANDING)

    @property
    def ran(self) -> bool:
        """Whether a server was seen at work, so that it did start."""
        seen = (f.name for f in self.figures if f.name not in (*_STANDING, *_ASKED))
        return bool(self.samples or self.sweep) or any(seen)

    @property
    def tells_lengths(self) -> bool:
        """Whether anything says how long prompts or answers are, be it by the rates of their tokens."""
        names = ("input_tokens", "output_tokens", "prompt_tokens_per_s", "output_tokens_per_s")
        return any(self.value(name) is not None for name in names) or any(
            self.hint(name) is not None for name in ("input_tokens", "output_tokens", "dataset")
        )

    @property
    def thin(self) -> bool:
        """Whether there is nothing that a replay could be compared with."""
        return not (self.figures or self.samples or self.events or self.sweep or self.trace)

    def _sampled_trend(self, name: str) -> Trend | None:
        values = self.series(name)
        if len(values) < 4:
            return None
        half = len(values) // 2
        before, after = _mean(values[:half]), _mean(values[half:])
        scale = max(abs(before), abs(after), 1e-9)
        if abs(after - before) < 0.15 * scale:
            return "steady"
        return "rising" if after > before else "falling"


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)

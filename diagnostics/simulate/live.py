"""Lays predictions beside what the engine really does here, under several policies on one load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ...core.execute.base import Capacity, Executor
from ...core.workload import Workload
from ..cost.neighbours import Neighbours
from ..cost.probe import Point, Probe
from ..cost.step import StepCost
from ..results import Result
from .clients import Frontend
from .prepare import Prepared
from .replay import replay

FIGURES = ("throughput_output_tokens_per_s", "ttft_mean_ms", "itl_p99_ms")
WITHIN = 0.10  # of the measured median a prediction is to lie
NOT_QUIET = 0.05  # share of all cores that others take in a run which then measures them too
DRAWS = 9  # replays of a prediction, each with its own scatter of the steps; their median counts
# Steps whose time tells how fast the machine is now; contexts are short, so that nothing need be computed before.
PULSE = (
    Point(decodes=1, context=16),
    Point(decodes=4, context=16),
    Point(decodes=8, context=16),
    Point(chunks=1, tokens=64, ends=True),
    Point(chunks=1, tokens=256, ends=True),
)
BEATS = 4  # rounds of them; the first one is not counted


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run on the real engine: its figures, how fast the machine was just before, and who else used it."""

    figures: dict[str, float]
    seconds: float
    speed: float | None = None  # 1 is what the hardware sheet says
    others: float | None = None  # share of all cores that other processes took meanwhile


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One policy: each figure predicted, and measured once a run."""

    policy: str
    predicted: dict[str, float]
    runs: list[LiveRun] = field(default_factory=list)

    def measured(self, figure: str) -> list[float]:
        return [run.figures[figure] for run in self.runs]

    def error(self, figure: str) -> float:
        """Predicted over the median of the measured, less one."""
        return self.predicted[figure] / median(self.measured(figure)) - 1

    def spread(self, figure: str) -> float:
        """Half the range of the repeats, as a share of their median."""
        values = self.measured(figure)
        return (max(values) - min(values)) / 2 / median(values)

    def holds(self, figure: str, within: float = WITHIN) -> bool:
        """Whether the prediction lies within `within`, or the spread of the repeats where that is larger."""
        return abs(self.error(figure)) <= max(within, self.spread(figure))

    @property
    def quiet(self) -> bool:
        """Whether other processes left the machine alone in every run; where they did not, nothing is judged."""
        return all(run.others is None or run.others < NOT_QUIET for run in self.runs)

    @property
    def speed(self) -> float | None:
        """Median speed of the machine before this policy's runs, 1 being the sheet's."""
        known = [run.speed for run in self.runs if run.speed is not None]
        return median(known) if known else None

    def error_at_speed(self, figure: str) -> float | None:
        """The error had the sheet been measured at the speed the machine had before these runs."""
        if self.speed is None:
            return None
        rate = figure.startswith("throughput")
        return (1 + self.error(figure)) * (self.speed if rate else 1 / self.speed) - 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "predicted": self.predicted,
            "measured": {name: self.measured(name) for name in FIGURES},
            "median": {name: median(self.measured(name)) for name in FIGURES},
            "error": {name: self.error(name) for name in FIGURES},
            "spread": {name: self.spread(name) for name in FIGURES},
            "quiet": self.quiet,
            "holds": {name: self.holds(name) if self.quiet else None for name in FIGURES},
            "machine_speed": [run.speed for run in self.runs],
            "error_at_speed": {name: self.error_at_speed(name) for name in FIGURES},
            "others_share": [run.others for run in self.runs],
            "run_s": [run.seconds for run in self.runs],
        }


Run = Callable[[str], tuple[Result, float | None]]  # a policy -> what a real engine did, the machine's speed
Said = Callable[[str], None]


def check_here(
    prepared: Prepared,
    workload: Workload,
    policies: Sequence[str],
    run: Run,
    repeats: int = 1,
    say: Said = lambda _: None,
) -> list[LiveRow]:
    """Predicts and measures each policy; `run` plays the workload on a real engine under a policy.

    The engine runs in-process, so no front end is simulated. Measurements of the policies alternate, so
    that a drift of the machine meets them all.
    """
    rows = [LiveRow(name, predict(prepared.under(name), workload)) for name in policies]
    for row in rows:
        say(f"predicted {row.policy}: {_told(row.predicted)}")
    neighbours = Neighbours()
    for repeat in range(repeats):
        for row in rows:
            neighbours.share()
            started = time.perf_counter()
            result, speed = run(row.policy)
            seconds = time.perf_counter() - started
            row.runs.append(LiveRun(figures(result), seconds, speed, neighbours.share()))
            say(f"run {repeat + 1} of {repeats}, {_run_told(row.policy, row.runs[-1])}")
    return rows


def predict(prepared: Prepared, workload: Workload) -> dict[str, float]:
    """Each figure's median over replays that differ in how the steps scatter."""
    setup = replace(prepared.setup(workload), frontend=Frontend())
    draws = DRAWS if setup.jitter else 1
    found = [figures(replay(replace(setup, seed=seed), workload).result) for seed in range(draws)]
    return {name: median(each[name] for each in found) for name in FIGURES}


def machine_speed(executor: Executor, capacity: Capacity, cost: StepCost) -> float:
    """Predicted over measured time of a few steps on an opened executor whose rows are all free."""
    fitting = [point for point in PULSE if _fits(point, capacity)]
    longest = max(max(point.context, point.start + point.tokens) for point in fitting)
    rows = max(point.rows for point in fitting)
    probe = Probe(executor, capacity, rows, rows, longest)
    probe.begin()
    times: dict[Point, list[float]] = {point: [] for point in fitting}
    for _ in range(BEATS):
        for point in fitting:
            times[point].append(probe.run(point))
    probe.end()
    return median(predicted_ms(point, cost) / median(taken[1:]) for point, taken in times.items())


def _fits(point: Point, capacity: Capacity) -> bool:
    longest = max(point.context, point.tokens)
    blocks = point.rows * -(-longest // capacity.block_size)
    return (
        point.rows <= capacity.max_num_seqs
        and longest < capacity.max_model_len
        and blocks <= capacity.num_blocks
    )


def predicted_ms(point: Point, cost: StepCost) -> float:
    """A step's predicted time, launch to result: without the host's share between steps."""
    told = cost.step(*point.arrays(), point.samples)
    return told.total - told.host


def figures(result: Result) -> dict[str, float]:
    """The three figures a prediction is judged by."""
    return {
        "throughput_output_tokens_per_s": result.throughput_output_tokens_per_s,
        "ttft_mean_ms": result.ttft_ms.mean if result.ttft_ms else 0.0,
        "itl_p99_ms": result.itl_ms.p99 if result.itl_ms else 0.0,
    }


def _told(found: dict[str, float]) -> str:
    rate, first, gap = (found[name] for name in FIGURES)
    return f"{rate:,.1f} output tok/s, first token {first:,.0f} ms, p99 between tokens {gap:,.1f} ms"


def _run_told(policy: str, run: LiveRun) -> str:
    told = f"{policy}: {_told(run.figures)} ({run.seconds:.1f} s"
    if run.speed is not None:
        told += f"; the machine at {run.speed:.0%} of the sheet's speed"
    if run.others is not None and run.others >= 0.02:
        told += f"; others took {run.others:.0%} of the cores"
    return told + ")"

"""Lays predictions beside what the engine really does here, under several policies on one load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ...core.workload import Workload
from ..results import Result
from .clients import Frontend
from .prepare import Prepared
from .replay import replay

FIGURES = ("throughput_output_tokens_per_s", "ttft_mean_ms", "itl_p99_ms")


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One policy: each figure predicted, and measured once a run."""

    policy: str
    predicted: dict[str, float]
    measured: dict[str, list[float]]

    def error(self, figure: str) -> float:
        """Predicted over the median of the measured, less one."""
        return self.predicted[figure] / median(self.measured[figure]) - 1

    def spread(self, figure: str) -> float:
        """Half the range of the repeats, as a share of their median."""
        values = self.measured[figure]
        return (max(values) - min(values)) / 2 / median(values)

    def holds(self, figure: str, within: float = 0.10) -> bool:
        """Whether the prediction lies within `within`, or the spread of the repeats where that is larger."""
        return abs(self.error(figure)) <= max(within, self.spread(figure))

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "predicted": self.predicted,
            "measured": self.measured,
            "error": {name: self.error(name) for name in FIGURES},
            "spread": {name: self.spread(name) for name in FIGURES},
            "holds": {name: self.holds(name) for name in FIGURES},
        }


def check_here(
    prepared: Prepared,
    workload: Workload,
    policies: Sequence[str],
    run: Callable[[str], Result],
    repeats: int = 1,
) -> list[LiveRow]:
    """Predicts and measures each policy; `run` plays the workload on a real engine under a policy.

    The engine runs in-process, so no front end is simulated. Measurements of the policies alternate, so
    that a drift of the machine meets them all.
    """
    measured: dict[str, list[Result]] = {name: [] for name in policies}
    for _ in range(repeats):
        for name in policies:
            measured[name].append(run(name))
    rows = []
    for name in policies:
        setup = replace(prepared.under(name).setup(workload), frontend=Frontend())
        predicted = figures(replay(setup, workload).result)
        told = {figure: [figures(result)[figure] for result in measured[name]] for figure in FIGURES}
        rows.append(LiveRow(name, predicted, told))
    return rows


def figures(result: Result) -> dict[str, float]:
    """The three figures a prediction is judged by."""
    return {
        "throughput_output_tokens_per_s": result.throughput_output_tokens_per_s,
        "ttft_mean_ms": result.ttft_ms.mean if result.ttft_ms else 0.0,
        "itl_p99_ms": result.itl_ms.p99 if result.itl_ms else 0.0,
    }

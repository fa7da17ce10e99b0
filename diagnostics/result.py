"""The result of a load, simulated or measured: one form, so that both can be laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of a latency in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray, weights: np.ndarray | None = None) -> Distribution:
        """Of a sample; with `weights`, each value counts that often. Zeros for an empty one."""
        array = np.asarray(values, dtype=float)
        if not len(array):
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        if weights is None:
            p50, p90, p99 = np.percentile(array, [50, 90, 99])
            return cls(float(array.mean()), float(p50), float(p90), float(p99), float(array.max()))
        order = np.argsort(array)
        reached = np.cumsum(weights[order]) / weights.sum()
        found = [
            float(array[order][min(int(np.searchsorted(reached, q)), len(array) - 1)])
            for q in (0.5, 0.9, 0.99)
        ]
        return cls(float((array * weights).sum() / weights.sum()), *found, float(array.max()))


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request must keep to count as good; None is no target. Milliseconds."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_p99_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def given(self) -> bool:
        return any(value is not None for value in (self.ttft_ms, self.tpot_ms, self.itl_p99_ms, self.e2e_ms))


@dataclass(slots=True)
class RequestTimes:
    """Columns over finished requests, aligned; seconds from the start of the load, lengths in tokens."""

    sent_s: np.ndarray
    first_token_s: np.ndarray
    finished_s: np.ndarray
    scheduled_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray
    preemptions: np.ndarray
    worst_gap_ms: np.ndarray  # the longest wait between two tokens of the request

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def ttft_ms(self) -> np.ndarray:
        return (self.first_token_s - self.sent_s) * 1e3

    @property
    def tpot_ms(self) -> np.ndarray:
        """Of requests with two tokens or more."""
        many = self.output_tokens > 1
        return (self.finished_s - self.first_token_s)[many] * 1e3 / (self.output_tokens[many] - 1)

    @property
    def queue_ms(self) -> np.ndarray:
        return (self.scheduled_s - self.sent_s) * 1e3

    def good(self, targets: Targets) -> np.ndarray:
        """bool [n]: which requests keep every target."""
        good = np.ones(len(self), dtype=bool)
        if targets.ttft_ms is not None:
            good &= self.ttft_ms <= targets.ttft_ms
        if targets.tpot_ms is not None:
            later = (self.finished_s - self.first_token_s) * 1e3
            good &= later <= targets.tpot_ms * np.maximum(self.output_tokens - 1, 0) + 1e-9
        if targets.itl_p99_ms is not None:
            good &= self.worst_gap_ms <= targets.itl_p99_ms
        if targets.e2e_ms is not None:
            good &= (self.finished_s - self.sent_s) * 1e3 <= targets.e2e_ms
        return good


@dataclass(slots=True)
class LoadResult:
    """What a load came to. Throughput is over `duration_s`, the time from the first arrival to the last end."""

    duration_s: float
    requests: int
    throughput_output_tokens_per_s: float
    throughput_total_tokens_per_s: float
    request_rate_per_s: float
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    e2e_ms: Distribution
    queue_ms: Distribution
    goodput_requests_per_s: float
    goodput_output_tokens_per_s: float
    kv: dict[str, float] = field(default_factory=dict)
    preemptions: int = 0
    rejected: int = 0
    prefix_hit_rate: float = 0.0
    saturated: bool = False
    error_band: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain mappings and numbers, ready for JSON."""
        return asdict(self)


def summarise(
    times: RequestTimes,
    itl_ms: np.ndarray,
    itl_counts: np.ndarray,
    targets: Targets,
    duration_s: float,
) -> LoadResult:
    """The result of finished requests and of the gaps between tokens (`itl_ms`, each `itl_counts` times)."""
    span = max(duration_s, 1e-9)
    outputs, inputs = float(times.output_tokens.sum()), float(times.input_tokens.sum())
    good = times.good(targets)
    return LoadResult(
        duration_s=duration_s,
        requests=len(times),
        throughput_output_tokens_per_s=outputs / span,
        throughput_total_tokens_per_s=(outputs + inputs) / span,
        request_rate_per_s=len(times) / span,
        ttft_ms=Distribution.of(times.ttft_ms),
        tpot_ms=Distribution.of(times.tpot_ms),
        itl_ms=Distribution.of(itl_ms, itl_counts),
        e2e_ms=Distribution.of((times.finished_s - times.sent_s) * 1e3),
        queue_ms=Distribution.of(times.queue_ms),
        goodput_requests_per_s=float(good.sum()) / span,
        goodput_output_tokens_per_s=float(times.output_tokens[good].sum()) / span,
    )

"""What a load came to, measured or simulated: one form for `engine bench` and `engine simulate`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ..core.errors import ConfigError

GOOD_SHARE = 0.95  # of the requests must keep every target where a load is said to keep them
NAIVE_REQUESTS = 8  # of a load, for a policy that runs one at a time: its rate is known after a few
SATURATED_TTFT_MS = 5000.0  # a mean first token later than this is a queue that does not drain


@dataclass(slots=True)
class RequestRecord:
    """One request as it went. Seconds on the run's clock; `error` names why it failed."""

    index: int
    arrival_s: float
    input_tokens: int
    output_tokens: int = 0
    first_token_s: float | None = None
    finished_s: float | None = None
    error: str | None = None
    itl_p99_ms: float | None = None  # of this request's own gaps between tokens
    tenant: str = ""
    cached_tokens: int = 0

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_token_s is None else (self.first_token_s - self.arrival_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first; None with a single token."""
        if self.first_token_s is None or self.finished_s is None or self.output_tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) * 1e3 / (self.output_tokens - 1)

    @property
    def e2e_ms(self) -> float | None:
        return None if self.finished_s is None else (self.finished_s - self.arrival_s) * 1e3


def _ended_well(record: RequestRecord) -> bool:
    return record.error is None and record.finished_s is not None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of one latency, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(
        cls, values: Sequence[float] | np.ndarray, weights: np.ndarray | None = None
    ) -> Distribution | None:
        """Of some values, each counted `weights` times; None of no values.

        Percentiles are the nearest rank: the least value that so large a share does not exceed.
        """
        data = np.asarray(values, dtype=np.float64)
        if not len(data):
            return None
        counts = np.ones(len(data)) if weights is None else np.asarray(weights, dtype=np.float64)
        order = np.argsort(data, kind="stable")
        data, share = data[order], np.cumsum(counts[order])
        ranks = np.searchsorted(share, np.array([0.5, 0.9, 0.99]) * share[-1] - 1e-9)
        p50, p90, p99 = data[np.minimum(ranks, len(data) - 1)]
        mean = float(np.average(data, weights=counts[order]))
        return cls(mean, float(p50), float(p90), float(p99), float(data[-1]))


@dataclass(frozen=True, slots=True)
class KvUse:
    """The KV cache over a run. `waste` is the mean share of slots in used blocks that hold no token."""

    blocks: int
    peak_used: int
    waste: float
    hit_rate: float | None = None  # of prompt tokens, found in the prefix cache


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request must meet to count as good, and the share of requests that must; None is no target. Milliseconds.

    `itl_ms` is held against the 99th percentile of a request's own gaps.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    share: float = GOOD_SHARE

    @property
    def any(self) -> bool:
        return any(ms is not None for _, ms in self._times())

    def describe(self) -> str:
        """`ttft 500 ms, itl 50 ms`, with the share of requests where somebody named one; empty without targets."""
        told = ", ".join(f"{name} {ms:g} ms" for name, ms in self._times() if ms is not None)
        return f"{told} for {self.share:.0%}" if told and self.share != GOOD_SHARE else told

    def _times(self) -> tuple[tuple[str, float | None], ...]:
        return ("ttft", self.ttft_ms), ("tpot", self.tpot_ms), ("itl", self.itl_ms), ("e2e", self.e2e_ms)

    def rule(self) -> str:
        """What keeping these targets means, in a sentence."""
        gaps = (
            ", itl by the 99th percentile of its own gaps between tokens" if self.itl_ms is not None else ""
        )
        return (
            f"a request is good where it keeps every target{gaps}; a load keeps them where {self.share:.0%} of its "
            "requests are good"
        )

    def met_by(self, record: RequestRecord) -> bool:
        """Whether a request ended well and within every target."""
        if not _ended_well(record):
            return False
        seen = (
            (self.ttft_ms, record.ttft_ms),
            (self.tpot_ms, record.tpot_ms),
            (self.itl_ms, record.itl_p99_ms),
            (self.e2e_ms, record.e2e_ms),
        )
        return all(target is None or value is None or value <= target for target, value in seen)


_TARGET = re.compile(
    r"\s*(ttft|tpot|itl|e2e)(?:_p(50|90|95|99))?(?:_(ms|s))?\s*=\s*(\d+(?:\.\d+)?)\s*(ms|s)?\s*"
)


def unit_missing(argument: str, units: tuple[str, str]) -> str:
    """The complaint about a bare number that may be in either unit."""
    one, other = (f"{argument}{unit}" for unit in units)
    return f"{argument!r}: its unit is missing; write {one} or {other}"


def parse_targets(text: str | None) -> Targets:
    """Targets from `ttft=500ms,itl_ms=50`: the value or the name says the unit. Raises ConfigError.

    A percentile, as in `ttft_p99=1s`, is the share of requests that must keep all targets.
    """
    values: dict[str, float] = {}
    shares: set[int] = set()
    for part in (text or "").split(","):
        if not part.strip():
            continue
        match = _TARGET.fullmatch(part)
        if match is None or float(match[4]) <= 0:
            raise ConfigError(
                f"target {part.strip()!r}: ttft, tpot, itl or e2e with a time is needed, e.g. ttft=500ms,itl=50ms; a "
                "percentile is _p50, _p90, _p95 or _p99 behind the name"
            )
        unit = match[5] or match[3]
        if unit is None:
            raise ConfigError(f"target {unit_missing(part.strip(), ('s', 'ms'))}")
        if match[2] and match[1] != "itl":
            shares.add(int(match[2]))
        elif match[2] not in (None, "99"):
            raise ConfigError(f"target {part.strip()!r}: itl is the 99th percentile of a request's own gaps")
        scale = 1e3 if unit == "s" else 1.0
        values[f"{match[1]}_ms"] = float(match[4]) * scale
    if len(shares) > 1:
        told = " and ".join(f"p{share}" for share in sorted(shares))
        raise ConfigError(f"targets {text}: {told}; one share of the requests must keep all of them")
    return Targets(**values, share=shares.pop() / 100) if shares else Targets(**values)


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one run. Rates are over `duration_s`: first arrival to last token."""

    requests: int
    completed: int
    failed: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    throughput_requests_per_s: float
    throughput_output_tokens_per_s: float
    throughput_total_tokens_per_s: float
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None
    goodput_requests_per_s: float
    goodput_output_tokens_per_s: float
    targets: Targets
    saturated: bool
    kv: KvUse | None = None
    preemptions: int | None = None
    errors: dict[str, int] = field(default_factory=dict)
    # How far a prediction may be off; empty if measured.
    error_band: dict[str, Any] = field(default_factory=dict)

    @property
    def good_share(self) -> float:
        """Of all requests, those that ended well and within every target."""
        if not self.completed:
            return 0.0
        return self.goodput_requests_per_s / self.throughput_requests_per_s * self.completed / self.requests

    @property
    def keeps_targets(self) -> bool:
        """Whether so large a share of the requests is good that the load counts as kept."""
        return self.good_share >= self.targets.share - 1e-9

    def with_latencies_of(self, part: Result) -> Result:
        """The rates and counts of this one with the latencies of a part of its requests, and as many good as of those."""
        good = part.goodput_requests_per_s / max(part.throughput_requests_per_s, 1e-9)
        good_tokens = part.goodput_output_tokens_per_s / max(part.throughput_output_tokens_per_s, 1e-9)
        return replace(
            self,
            ttft_ms=part.ttft_ms,
            tpot_ms=part.tpot_ms,
            itl_ms=part.itl_ms,
            e2e_ms=part.e2e_ms,
            goodput_requests_per_s=good * self.throughput_requests_per_s,
            goodput_output_tokens_per_s=good_tokens * self.throughput_output_tokens_per_s,
            saturated=part.saturated,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)


def summarise(
    records: Iterable[RequestRecord],
    gaps_ms: np.ndarray,
    *,
    gap_weights: np.ndarray | None = None,
    targets: Targets | None = None,
    kv: KvUse | None = None,
    preemptions: int | None = None,
    error_band: dict[str, Any] | None = None,
) -> Result:
    """The figures of a run from its requests and all gaps between tokens (each counted `gap_weights` times).

    Without targets every completed request is good.
    """
    rows = list(records)
    targets = targets or Targets()
    done = [row for row in rows if _ended_well(row)]
    start = min((row.arrival_s for row in rows), default=0.0)
    end = max((row.finished_s for row in done if row.finished_s is not None), default=start)
    duration = max(end - start, 1e-9)
    good = [row for row in done if targets.met_by(row)]
    inputs, outputs = sum(r.input_tokens for r in done), sum(r.output_tokens for r in done)
    ttft = Distribution.of([ms for row in done if (ms := row.ttft_ms) is not None])
    return Result(
        requests=len(rows),
        completed=len(done),
        failed=len(rows) - len(done),
        duration_s=duration,
        input_tokens=inputs,
        output_tokens=outputs,
        throughput_requests_per_s=len(done) / duration,
        throughput_output_tokens_per_s=outputs / duration,
        throughput_total_tokens_per_s=(inputs + outputs) / duration,
        ttft_ms=ttft,
        tpot_ms=Distribution.of([ms for row in done if (ms := row.tpot_ms) is not None]),
        itl_ms=Distribution.of(gaps_ms, gap_weights),
        e2e_ms=Distribution.of([ms for row in done if (ms := row.e2e_ms) is not None]),
        goodput_requests_per_s=len(good) / duration,
        goodput_output_tokens_per_s=sum(row.output_tokens for row in good) / duration,
        targets=targets,
        saturated=ttft is not None and ttft.mean > SATURATED_TTFT_MS,
        kv=kv,
        preemptions=preemptions,
        errors=dict(Counter(row.error or "unfinished" for row in rows if not _ended_well(row))),
        error_band=error_band or {},
    )

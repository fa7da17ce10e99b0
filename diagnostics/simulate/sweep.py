"""Many replays of one load: policies side by side, one knob over several values, the highest rate that holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import CapacityError, ConfigError
from ...core.places import nearest
from ...core.workload import Workload
from ...policies.base import PolicyError
from ...policies.registry import load_policy
from ..results import NAIVE_REQUESTS, Result, Targets
from .prepare import Prepared
from .replay import Replay
from .steady import Steady

RATE_PRECISION = 0.03
SHOWN = (0.5, 0.7, 0.9)  # of what a full server gets through: rates that are shown where no target sets one


@dataclass(frozen=True, slots=True)
class Row:
    """One replay of a series; `result` is None where the configuration cannot run, and `reason` says why."""

    label: str
    value: Any
    result: Result | None
    reason: str = ""
    replay: Replay | None = None
    contradicts: bool = False  # its values do not go together, rather than too large for the device


def policies(prepared: Prepared, workload: Workload, names: Sequence[str]) -> list[Row]:
    """The load under each policy. Raises ConfigError for a name that is no policy, before anything is replayed."""
    for name in names:
        require_policy(name)
    return [_row(name, name, lambda name=name: prepared.under(name).replay(workload)) for name in names]


def knob(prepared: Prepared, workload: Workload, name: str, values: Iterable[Any]) -> list[Row]:
    """The load with one knob at each value. Raises ConfigError for a name that is no knob, before any replay."""
    if name not in prepared.values and name not in prepared.foreign:
        raise ConfigError(f"--sweep {name}: no such knob{nearest(name, prepared.values)}")
    return [
        _row(
            f"{name}={value}",
            value,
            lambda value=value: prepared.turned(**{name: value}).replay(workload),
        )
        for value in values
    ]


def require_policy(name: str) -> None:
    """Raises ConfigError for a name of --policies that is no policy."""
    try:
        load_policy(name)
    except PolicyError as error:
        raise ConfigError(f"--policies: {error}") from error


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """`max_num_batched_tokens=512,1024` as a knob and its values. Raises ConfigError."""
    name, equals, told = text.partition("=")
    values = [part.strip() for part in told.split(",") if part.strip()]
    if not equals or not name.strip() or not values:
        raise ConfigError(f"--sweep {text}: knob=value,value is needed, e.g. max_num_batched_tokens=512,2048")
    from ...core.places import parse_scalar

    return name.strip().removeprefix("--").replace("-", "_"), [parse_scalar(value) for value in values]


@dataclass(frozen=True, slots=True)
class Highest:
    """The highest arrival rate that holds, and the replays that found it, by rate."""

    rate_per_s: float
    result: Result | None
    tried: list[Row]
    reason: str = ""  # why no rate holds
    capacity_per_s: float | None = None  # of a full server, whatever the targets
    what: str = "requests"  # that arrive: of conversations, sessions


def until_saturation(
    prepared: Prepared, workload: Workload, watch: Callable[[Row, bool], None] | None = None
) -> Highest:
    """The highest rate that a server carries for good and at which 95 % of the requests keep the targets.

    Below what a full server gets through, halves the interval until the rate is known to 3 %. Requests are those of the
    workload, arriving at random. `watch` hears each replay and whether it holds. Rate 0 where requests break the targets
    one at a time, or even a trickle.
    """
    if prepared.targets.any:
        few = workload.first(min(NAIVE_REQUESTS, workload.count))
        alone = _row("one at a time", 0.0, lambda: prepared.replay(few.at_concurrency(1)))
        if alone.result is None or not alone.result.keeps_targets:
            return Highest(0.0, None, [alone], alone.reason or _alone_text(alone.result, prepared.targets))
    what = "sessions" if workload.shape.arrival.kind == "sessions" else "requests"
    server = Steady(prepared.settled, workload, prepared.targets)
    tried: list[Row] = []

    def holds(rate: float) -> bool:
        row = _row(f"{rate:.3g}/s", rate, lambda: server.at(rate))
        kept = row.result is not None and server.holds(rate)
        tried.append(row)
        if watch is not None:
            watch(row, kept)
        return kept

    full = server.capacity_per_s
    if full and not prepared.targets.any:
        for share in SHOWN:
            holds(share * full)
        return Highest(full, tried[-1].result, tried, capacity_per_s=full, what=what)
    low, high = _bracket(holds, full / 2 if full else _first_rate(prepared, workload), full)
    while low and high / low > 1 + RATE_PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    best = next((row.result for row in reversed(tried) if row.value == low), None)
    tried.sort(key=lambda row: row.value)
    return Highest(low, best, tried, "" if low else "even a trickle misses the targets", full, what)


def _alone_text(result: Result | None, targets: Targets) -> str:
    """Why no rate holds: what a request takes that has the device to itself."""
    assert result is not None  # it ran
    seen = {"ttft": result.ttft_ms, "tpot": result.tpot_ms, "itl": result.itl_ms, "e2e": result.e2e_ms}
    told = ", ".join(f"{name} {spread.p50:,.1f} ms" for name, spread in seen.items() if spread is not None)
    return (
        f"one request at a time already misses {targets.describe()}: with nothing else running the median is {told}. "
        "More or faster devices, or a smaller model, are needed"
    )


def _bracket(holds: Callable[[float], bool], rate: float, most: float | None) -> tuple[float, float]:
    """A rate that holds and one that does not (`most`, where it is known); (0, rate) if none holds."""
    if holds(rate):
        while most is None and rate < 1e6 and holds(rate * 2):
            rate *= 2
        return rate, most or rate * 2
    for _ in range(14):
        if holds(rate / 2):
            return rate / 2, rate
        rate /= 2
    return 0.0, rate


def _first_rate(prepared: Prepared, workload: Workload) -> float:
    """A first guess, where the load does not fill the server: half of what a crowd of clients gets through."""
    result = prepared.replay(workload.at_concurrency(workload.count)).result
    return max(1e-3, result.throughput_requests_per_s / 2)


def _row(label: str, value: Any, run: Callable[[], Replay]) -> Row:
    try:
        replay = run()
    except (CapacityError, ConfigError) as error:
        reason = str(error).removeprefix("(given): ")
        return Row(label, value, None, reason, contradicts=isinstance(error, ConfigError))
    return Row(label, value, replay.result, replay=replay)

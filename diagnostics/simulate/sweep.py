"""Many replays of one load: policies side by side, one knob over several values, the highest rate that holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core.errors import CapacityError, ConfigError
from ...core.wording import nearest
from ...core.workload import Workload
from ...policies.base import PolicyError
from ...policies.registry import load_policy
from ..cost.band import MOST_PERCENT, error_percent
from ..results import NAIVE_REQUESTS, Result
from .prepare import Prepared
from .replay import Replay
from .steady import Steady

RATE_PRECISION = 0.03
ENDS_PRECISION = 0.1  # of the ends of its range
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Highest:
    """The highest arrival rate that holds, and the replays that found it, by rate."""

    rate_per_s: float
    result: Result | None
    tried: list[Row]
    reason: str = ""  # why no rate holds, or none is too high
    capacity_per_s: float | None = None  # of a full server, whatever the targets
    what: str = "requests"  # that arrive: of conversations, sessions
    error_percent: float = 0.0  # by which all steps are slower and faster at the ends of the range
    range_per_s: tuple[float, float] | None = None  # the rate that holds with them so; None where none does


def until_saturation(
    prepared: Prepared, workload: Workload, watch: Callable[[Row, bool], None] | None = None
) -> Highest:
    """The highest rate that a server carries for good and at which enough of the requests keep the targets.

    Below what a full server gets through, halves the interval until the rate is known to 3 %, and to 10 % with all steps
    slower and faster by the declared error. Requests are those of the workload, arriving at random. `watch` hears each
    replay and whether it holds. Rate 0 where requests break the targets one at a time, or even a trickle.
    """
    few = workload.first(min(NAIVE_REQUESTS, workload.count))
    alone = _row("one at a time", 0.0, lambda: prepared.replay(few.at_concurrency(1)))
    if reason := alone.reason or _alone_text(alone.result):
        return Highest(rate_per_s=0.0, result=None, tried=[alone], reason=f"no rate holds: {reason}")
    server = Steady(prepared.settled, workload, prepared.targets)
    full, search = server.capacity_per_s, _Search(server, watch)
    if full is None and (crowd := _all_at_once(prepared, workload)):
        return crowd
    if full and not prepared.targets.any:
        rate = full
        for share in SHOWN:
            search.holds(share * full)
    else:
        rate = search.highest(full / 2 if full else _first_rate(prepared, workload), RATE_PRECISION)
    percent = error_percent(prepared.hardware, prepared.shape)[0]
    best = next((row.result for row in reversed(search.tried) if row.value == rate), search.tried[-1].result)
    known = rate and percent
    return Highest(
        rate_per_s=rate,
        result=best if rate else None,
        tried=sorted(search.tried, key=lambda row: row.value),
        reason="" if rate else "no rate holds: even a trickle misses the targets",
        capacity_per_s=full,
        what=workload.arrives,
        error_percent=percent,
        range_per_s=_range(prepared, workload, rate, full, min(MOST_PERCENT, percent) / 100)
        if known
        else None,
    )


def _all_at_once(prepared: Prepared, workload: Workload) -> Highest | None:
    """That no rate is too high for a load, where all of it at once neither waits nor misses the targets."""
    row = _row("all at once", 0.0, lambda: prepared.replay(workload.at_concurrency(workload.count)))
    if row.replay is None or row.replay.log.blocked.keys() & {"no_slot", "no_blocks"}:
        return None
    if row.result is None or (prepared.targets.any and not row.result.keeps_targets):
        return None
    reason = (
        f"no rate is too high for this load: its {workload.count:,} requests do not fill the server even where all arrive at "
        "once. A longer one does"
    )
    return Highest(rate_per_s=0.0, result=None, tried=[row], reason=reason)


@dataclass(slots=True)
class _Search:
    """Rates tried on one server."""

    server: Steady
    watch: Callable[[Row, bool], None] | None = None
    tried: list[Row] = field(default_factory=list)

    def holds(self, rate: float) -> bool:
        """Whether a rate does."""
        row = _row(f"{rate:.3g}/s", rate, lambda: self.server.at(rate))
        kept = row.result is not None and self.server.holds(rate)
        self.tried.append(row)
        if self.watch is not None:
            self.watch(row, kept)
        return kept

    def highest(self, first: float, precision: float, least: float = 0.0, most: float | None = None) -> float:
        """The highest rate that holds, to a precision, from a first guess on; 0 if none does.

        least, most: one that is known to hold, and one that is known not to.
        """
        low, high = _bracket(self.holds, first, least, most or self.server.capacity_per_s)
        while low and high / low > 1 + precision:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low


def _range(
    prepared: Prepared, workload: Workload, rate: float, full: float | None, error: float
) -> tuple[float, float]:
    """The rate that holds with all steps slower and faster; a full server's goes as they do."""
    if full and not prepared.targets.any:
        return rate / (1 + error), rate / (1 - error)
    ends = []
    for factor in (1 + error, 1 - error):
        settled = partial(prepared.settled, step_factor=factor)
        server = Steady(settled, workload, prepared.targets, [full / factor] if full else [])
        known = {"most": rate * (1 + RATE_PRECISION)} if factor > 1 else {"least": rate}
        ends.append(_Search(server).highest(rate / factor, ENDS_PRECISION, **known))
    return ends[0], ends[1]


def _alone_text(result: Result | None) -> str:
    """Why no rate holds: requests that are refused, or what one takes that has the device to itself; empty where one may."""
    assert result is not None  # it ran
    if result.failed > (1 - result.targets.share) * result.requests:
        why, count = max(result.errors.items(), key=lambda item: item[1])
        shown = why if count == result.failed else f"{why}, and others like it"
        return f"{result.failed / result.requests:.0%} of the requests are refused whatever the rate: {shown}"
    if not result.targets.any or result.keeps_targets:
        return ""
    seen = {"ttft": result.ttft_ms, "tpot": result.tpot_ms, "itl": result.itl_ms, "e2e": result.e2e_ms}
    told = ", ".join(f"{name} {spread.p50:,.1f} ms" for name, spread in seen.items() if spread is not None)
    return (
        f"one request at a time already misses {result.targets.describe()}: with nothing else running the median is {told}. "
        "More or faster devices, or a smaller model, are needed"
    )


def _bracket(
    holds: Callable[[float], bool], rate: float, least: float, most: float | None
) -> tuple[float, float]:
    """A rate that holds and one that does not, from `rate` on; (0, rate) if none holds."""
    if holds(rate):
        while most is None and rate < 1e6 and holds(rate * 2):
            rate *= 2
        return rate, most or rate * 2
    if least:
        return least, rate
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
    return Row(label, value, replay.whole, replay=replay)

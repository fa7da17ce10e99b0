"""What a simulation remembers: one row a step, one a finished request, and the gaps between tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from operator import attrgetter

import numpy as np

from ...core.request import Request
from ...core.schedule.ledger import Blocked
from ...core.schedule.plan import StepPlan
from ...core.workload import WorkloadRequest
from ..cost.step import StepTime
from ..results import RequestRecord

PARTS = tuple(f.name for f in fields(StepTime))
_parts_of = attrgetter(*PARTS)
PART_NAMES = {
    "gemm": "matrix products",
    "experts": "experts",
    "head": "logits",
    "decode_attention": "attention of decodes",
    "prefill_attention": "attention of prompts",
    "communication": "communication",
    "transfer": "reading weights from the host's memory",
    "elementwise": "norms and other small kernels",
    "sampling": "sampling",
    "launch": "launching kernels",
    "host": "host",
}
STEP_COLUMNS = (
    "end_s",
    "duration_ms",
    "decodes",
    "prefill_tokens",
    "padding",
    "running",
    "waiting",
    "kv_blocks",
    "tokens_held",
)


@dataclass(slots=True)
class StepLog:
    """Columns over steps. `parts` are the milliseconds of each part of `StepTime`, in `PARTS`' order."""

    columns: np.ndarray  # float64 [steps, len(STEP_COLUMNS)]
    parts: np.ndarray  # float64 [steps, len(PARTS)]
    blocked: dict[str, float]  # seconds in which somebody waited, by what held the first of them back

    def column(self, name: str) -> np.ndarray:
        return self.columns[:, STEP_COLUMNS.index(name)]

    def part_ms(self, name: str) -> np.ndarray:
        return self.parts[:, PARTS.index(name)]

    def shares(self) -> dict[str, float]:
        """Share of all step time that each part takes."""
        total = max(float(self.parts.sum()), 1e-12)
        return {name: float(self.parts[:, i].sum()) / total for i, name in enumerate(PARTS)}


def why_waiting(cause: str) -> str:
    """A cause of `StepLog.blocked` in words."""
    return Blocked[cause.upper()].value


@dataclass(frozen=True, slots=True)
class Detail:
    """What a replay knows of a finished request beyond its record."""

    queue_ms: float  # from being sent to its first step
    preemptions: int


@dataclass(slots=True)
class Recorder:
    """Fills while the simulation runs. `longest_output` above 0 keeps each request's own gaps."""

    max_num_seqs: int
    longest_output: int = 0
    warm_up_s: float = 0.0  # gaps before are not counted
    records: list[RequestRecord] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)
    _steps: list[tuple[float, ...]] = field(default_factory=list, repr=False)
    _parts: list[tuple[float, ...]] = field(default_factory=list, repr=False)
    begun_s: float | None = None  # when all that start at once had begun
    _gaps: Counter[float] = field(default_factory=Counter, repr=False)
    _start_gaps: Counter[float] = field(default_factory=Counter, repr=False)  # before that
    _blocked: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float), repr=False
    )  # seconds
    _last_token_s: np.ndarray = field(init=False, repr=False)
    _own_gaps: np.ndarray | None = field(init=False, repr=False, default=None)  # ms, [row, n]
    _own_count: np.ndarray = field(init=False, repr=False)
    _owner: dict[int, str] = field(default_factory=dict, repr=False)  # request id by row
    _left: dict[str, float] = field(default_factory=dict, repr=False)  # last tokens of rows taken over

    def __post_init__(self) -> None:
        self._last_token_s = np.full(self.max_num_seqs, np.nan)
        self._own_count = np.zeros(self.max_num_seqs, dtype=np.int64)
        if self.longest_output:
            self._own_gaps = np.zeros((self.max_num_seqs, self.longest_output), dtype=np.float32)

    def started(self, plan: StepPlan) -> None:
        """New rows have no last token yet, except those that return from an eviction."""
        for new in plan.added:
            owner = self._owner.get(new.row)
            if owner is not None:
                self._left[owner] = float(self._last_token_s[new.row])
            self._owner[new.row] = new.request_id
        for new in plan.added:
            returns = len(new.tokens) > new.prompt_len
            self._last_token_s[new.row] = self._left.pop(new.request_id, np.nan) if returns else np.nan
            self._own_count[new.row] = 0

    def tokens(self, rows: np.ndarray, now_s: float) -> None:
        """Each of `rows` received a token at `now_s`."""
        gaps = now_s - self._last_token_s[rows]
        self._last_token_s[rows] = now_s
        known = gaps[~np.isnan(gaps)]
        if not len(known) or now_s < self.warm_up_s:
            return
        if self._own_gaps is not None:
            second = rows[~np.isnan(gaps)]
            self._own_gaps[second, self._own_count[second]] = known * 1e3
            self._own_count[second] += 1
        low, high = float(known.min()), float(known.max())
        if high - low < 1e-9:
            self._gaps[round(low * 1e3, 3)] += len(known)
        else:
            for gap in np.round(known * 1e3, 3).tolist():
                self._gaps[gap] += 1

    def step(self, row: tuple[float, ...], time: StepTime, blocked: Blocked) -> None:
        """One finished step; `row` follows STEP_COLUMNS."""
        self._steps.append(row)
        self._parts.append(_parts_of(time))
        if blocked is not Blocked.NONE:
            self._blocked[blocked.name.lower()] += row[1] / 1e3

    def finished(self, told: WorkloadRequest, request: Request, row: int, sent_s: float) -> None:
        """A request has ended; `row` is the one it had."""
        self._owner.pop(row, None)
        self.records.append(
            RequestRecord(
                told.index,
                sent_s,
                told.input_tokens,
                told.output_tokens,
                request.first_token_s,
                request.finished_s,
                itl_p99_ms=self._own_p99(row),
                tenant=told.tenant,
                cached_tokens=request.cached_tokens,
            )
        )
        started = request.first_scheduled_s if request.first_scheduled_s is not None else sent_s
        self.details.append(Detail((started - sent_s) * 1e3, request.preemptions))

    def refused(self, told: WorkloadRequest, sent_s: float, why: str) -> None:
        """A request that was never run."""
        self.records.append(RequestRecord(told.index, sent_s, told.input_tokens, error=why))

    def _own_p99(self, row: int) -> float | None:
        count = int(self._own_count[row])
        if self._own_gaps is None or not count:
            return None
        return float(np.percentile(self._own_gaps[row, :count], 99))

    def all_begun(self, now_s: float) -> None:
        """All that start at once have a first token: gaps from now on are counted apart."""
        self.begun_s, self._start_gaps, self._gaps = now_s, self._gaps, Counter()

    def gaps(self, later: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Gaps between tokens in milliseconds, and how often each occurred; only those after `begun_s`, if `later`."""
        found = self._gaps if later else self._gaps + self._start_gaps
        return np.array(list(found.keys())), np.array(list(found.values()), dtype=float)

    def log(self) -> StepLog:
        return StepLog(
            np.array(self._steps, dtype=float).reshape(-1, len(STEP_COLUMNS)),
            np.array(self._parts, dtype=float).reshape(-1, len(PARTS)),
            dict(self._blocked),
        )

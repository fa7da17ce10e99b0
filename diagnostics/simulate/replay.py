"""One scheduler, two clocks: plays a workload through core's scheduler on a virtual clock."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ...core.errors import CapacityError, RequestError, Stall
from ...core.execute.base import Capacity
from ...core.request import Request, SamplingParams
from ...core.schedule.ledger import Ledger
from ...core.schedule.plan import StepPlan
from ...core.schedule.scheduler import Scheduler, SchedulerParams
from ...core.workload import Workload, WorkloadRequest, segment_tokens
from ...policies.base import Policy
from ..cost.hardware import Jitter
from ..cost.step import StepTimer
from ..results import Distribution, KvUse, RequestRecord, Result, Targets, summarise
from .clients import Clients, Frontend
from .executor import FILLER, Scatter, VirtualClock, VirtualExecutor
from .recorder import Detail, Recorder, StepLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a simulation runs: the scheduler's limits, a policy, a cost model and the way to the engine."""

    params: SchedulerParams
    policy: Policy
    cost: StepTimer
    vocab_size: int
    frontend: Frontend = field(default_factory=Frontend)
    targets: Targets = field(default_factory=Targets)
    max_queued_requests: int | None = None  # beyond it a request is refused, as the server would
    jitter: Jitter | None = None  # how the machine's steps scatter, if that was measured
    seed: int = 0  # of what is drawn from it
    warm_up_s: float = (
        0.0  # of arrivals that are played and not counted: an empty server is faster than a busy one
    )
    error_band: dict[str, object] = field(default_factory=dict)


_COUNTS = ("requests", "completed", "failed", "input_tokens", "output_tokens")
FEWEST_LATER = 20  # requests sent after a start: fewer say nothing of a server that runs


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a simulation: the figures, every step, and what the requests went through."""

    result: Result
    log: StepLog
    details: list[Detail]  # one a completed request
    queue_ms: Distribution | None  # from being sent to the first step
    kv_tokens: int
    frontend_busy: float  # share of the HTTP processes' time
    records: tuple[RequestRecord, ...] = ()  # as they ended, those of the warm-up too
    copies: int = 1  # that share the load; log and records are of one, the result's rates of all
    # Where clients all start at once: the result with latencies and the share of good requests of what is sent once
    # each of the first ones has its first token. Rates and counts are of all.
    later: Result | None = None
    from_start: Result | None = None  # the result with the start, where `result` leaves it out

    @property
    def whole(self) -> Result:
        """The result with the counts of all copies, of which one was played."""
        own, times = self.result, self.copies
        counts = {name: getattr(own, name) * times for name in _COUNTS}
        errors = {why: count * times for why, count in own.errors.items()}
        evicted = None if own.preemptions is None else own.preemptions * times
        return replace(own, **counts, errors=errors, preemptions=evicted)

    def without_start(self) -> Replay:
        """The replay as of a server whose clients did not all start at once; itself where they did not."""
        if self.later is None:
            return self
        return replace(self, result=self.later, from_start=self.result, later=None)


def replay(setup: Setup, workload: Workload) -> Replay:
    """Runs the workload to its end.

    Requests that can never run count as failed. Raises CapacityError if that is all of them, Stall if the
    policy admits nobody for good.
    """
    if setup.params.enable_prefix_caching and not _reuses(workload):
        try:
            return _Simulation(_unhashed(setup), workload, reuses=False).run()
        except _Evicted:
            pass
    return _Simulation(setup, workload).run()


FEW_EVICTIONS = 0.01  # of the requests: that so many find none of their own blocks again changes no figure


class _Evicted(Exception):
    """Sequences are evicted: when they return they may find their own blocks."""


def _reuses(workload: Workload) -> bool:
    """Whether a prompt begins as another one does: without that, a prefix cache serves evicted sequences alone."""
    seen: set[int] = set()
    for request in workload.requests():
        if request.after >= 0 or request.segments[0].content in seen:
            return True
        seen.add(request.segments[0].content)
    return False


def _unhashed(setup: Setup) -> Setup:
    """The same plans without the hashes of blocks that nobody looks for."""
    return replace(
        setup, params=replace(setup.params, enable_prefix_caching=False), policy=deepcopy(setup.policy)
    )


IDLE_S = 0.005  # how far the clock moves when requests wait and the policy starts none
MAX_IDLE_S = 600.0


class _Simulation:
    def __init__(self, setup: Setup, workload: Workload, reuses: bool = True) -> None:
        """reuses: False stands for a prefix cache in which nothing is found, and stops where more than a few are evicted."""
        self.setup, self.reuses = setup, reuses
        self.few = int(FEW_EVICTIONS * workload.count)
        self.clock = VirtualClock()
        self.clients = Clients(workload, setup.frontend.fresh())
        params = setup.params
        self.scheduler = Scheduler(params, setup.policy, Ledger(max_steps=2, max_requests=1))
        longest = max((r.output_tokens for r in workload.requests()), default=1)
        own_gaps = longest if setup.targets.itl_ms is not None else 0
        self.recorder = Recorder(params.max_num_seqs, own_gaps, setup.warm_up_s)
        self.cached = params.enable_prefix_caching  # then prompts need tokens of their own
        self.idle_s = 0.0
        together = workload.concurrency or 1
        self.to_begin = min(together, workload.count) if together > 1 else 0  # of those that start at once
        self.told: dict[str, tuple[WorkloadRequest, float]] = {}
        self.answers: dict[str, WorkloadRequest] = {}
        capacity = Capacity(
            params.num_blocks, params.block_size, params.max_model_len, params.max_num_seqs, setup.vocab_size
        )
        followed = self.cached and any(r.after >= 0 for r in workload.requests())
        self.executor = VirtualExecutor(
            setup.cost,
            capacity,
            self.clock,
            self.answers if followed else None,
            longest,
            Scatter(setup.jitter, setup.seed) if setup.jitter else None,
        )

    def run(self) -> Replay:
        while True:
            self._arrivals()
            plan = self.scheduler.schedule(self.clock.now_s)
            if not self.reuses and self.scheduler.preemptions > self.few:
                raise _Evicted
            for request in self.scheduler.take_rejected():
                self._gone(request.id, request.error or "refused by the policy")
            if plan is None:
                if not self._pass_time():
                    break
                continue
            self.idle_s = 0.0
            self._step(plan)
        return self._result()

    def _pass_time(self) -> bool:
        """Moves the clock to the next arrival, or a little on while the policy lets requests wait.

        False when nobody is left. Raises Stall if the policy admits nobody for ten minutes.
        """
        upcoming = self.clients.next_s()
        now = self.clock.now_s
        if len(self.scheduler.waiting):
            upcoming = min(upcoming or np.inf, now + IDLE_S)
            self.idle_s += IDLE_S
            if self.idle_s > MAX_IDLE_S:
                raise Stall(
                    f"{len(self.scheduler.waiting)} requests wait, nothing runs, and the policy admits nobody"
                )
        if upcoming is None:
            return False
        self.clock.now_s = max(float(upcoming), now)
        return True

    def _arrivals(self) -> None:
        for told, sent_s in self.clients.take(self.clock.now_s):
            limit = self.setup.max_queued_requests
            request = self._request(told, sent_s)
            self.told[request.id] = (told, sent_s)
            if limit is not None and len(self.scheduler.waiting) >= limit:
                self._gone(request.id, "the queue is full")
                continue
            if self.executor.answers is not None:
                self.answers[request.id] = told
            try:
                self.scheduler.add(request, self.clock.now_s)
            except RequestError as error:
                self._gone(request.id, str(error))

    def _request(self, told: WorkloadRequest, sent_s: float) -> Request:
        prompt = (
            segment_tokens(told.segments, self.setup.vocab_size)
            if self.cached
            else _filler(told.input_tokens)
        )
        deadline = None if told.deadline_ms is None else sent_s + told.deadline_ms / 1e3
        params = SamplingParams(max_tokens=told.output_tokens, ignore_eos=True)
        return Request(
            f"r{told.index}",
            prompt,
            params,
            arrival_s=self.clock.now_s,
            priority=told.priority,
            tenant=told.tenant,
            deadline_s=deadline,
        )

    def _step(self, plan: StepPlan) -> None:
        scheduler, recorder = self.scheduler, self.recorder
        blocked = scheduler.ledger.steps[-1].blocked
        recorder.started(plan)
        owners = plan.rows[plan.samples]
        result = self.executor.collect(self.executor.launch(plan))
        now = self.clock.now_s
        late = self.clients.frontend.stream(now, len(owners))
        recorder.tokens(owners, now + late)
        used = self.setup.params.num_blocks - scheduler.kv.num_free
        held = int(scheduler.rows.computed[scheduler.running.all_rows()].sum())
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        update = scheduler.update(result, now)
        prefill = plan.total_tokens - plan.num_decodes
        row = (now, result.duration_ms, plan.num_decodes, prefill, plan.padding, running, waiting, used, held)
        recorder.step(row, self.executor.last, blocked)
        for news in update.news:
            request = news.request
            if news.first and late:
                request.first_token_s = now + late
            if news.first:
                self._begun(self.told[request.id][1])
            if request.finish_reason is not None:
                request.finished_s = now + late
                told, sent_s = self.told.pop(request.id)
                recorder.finished(told, request, news.row, sent_s)
                self.answers.pop(request.id, None)
                self.clients.ended(told, now + late)

    def _gone(self, request_id: str, why: str) -> None:
        """A request that will not run."""
        told, sent_s = self.told.pop(request_id)
        self.answers.pop(request_id, None)
        self.recorder.refused(told, sent_s, why)
        self._begun(sent_s)
        self.clients.ended(told, self.clock.now_s)

    def _hit_rate(self) -> float | None:
        if not self.reuses:
            return 0.0
        prefix = self.scheduler.kv.prefix
        return prefix.hits / prefix.queries if prefix.queries else None

    def _begun(self, sent_s: float) -> None:
        """A request has its first token, or never gets one; the last of those that start at once ends the start."""
        if self.to_begin and sent_s == self.clients.start_s:
            self.to_begin -= 1
            if not self.to_begin:
                self.recorder.all_begun(self.clock.now_s)

    def _result(self) -> Replay:
        self.scheduler.check_integrity()
        recorder, log, setup = self.recorder, self.recorder.log(), self.setup
        if recorder.records and not recorder.details:
            raise CapacityError(f"no request of the workload can run: {recorder.records[-1].error}")
        counted = [record for record in recorder.records if record.arrival_s >= setup.warm_up_s]
        summed = partial(
            summarise,
            targets=setup.targets,
            kv=_kv_use(log, setup.params, self._hit_rate()),
            preemptions=self.scheduler.preemptions,
            error_band=dict(setup.error_band),
        )
        gaps, weights = recorder.gaps()
        result, later = summed(counted, gaps, gap_weights=weights), None
        if recorder.begun_s is not None:
            sent_later = [record for record in counted if record.arrival_s >= recorder.begun_s]
            if len(sent_later) >= FEWEST_LATER:
                gaps, weights = recorder.gaps(later=True)
                later = result.with_latencies_of(summed(sent_later, gaps, gap_weights=weights))
        sent_s = np.array([record.arrival_s for record in recorder.records])
        piled = _piles_up(log, sent_s)
        busy = self.clients.frontend.busy_s / self.clock.now_s if self.clock.now_s else 0.0
        return Replay(
            replace(result, saturated=result.saturated or piled),
            log,
            recorder.details,
            Distribution.of([detail.queue_ms for detail in recorder.details]),
            setup.params.num_blocks * setup.params.block_size,
            busy,
            tuple(recorder.records),
            later=later,
        )


def _filler(tokens: int) -> np.ndarray:
    return np.broadcast_to(np.int32(FILLER), tokens)


def _kv_use(log: StepLog, params: SchedulerParams, hit_rate: float | None) -> KvUse:
    """Blocks, the most in use, and the share of used slots that hold no token (average over time)."""
    used, held, took = log.column("kv_blocks"), log.column("tokens_held"), log.column("duration_ms")
    slots = float((used * took).sum()) * params.block_size
    waste = max(0.0, 1 - float((held * took).sum()) / slots) if slots else 0.0
    return KvUse(params.num_blocks, int(used.max(initial=0)), waste, hit_rate)


def _piles_up(log: StepLog, sent_s: np.ndarray) -> bool:
    """Whether work arrives faster than it ends: the queue in the last fifth of the arrivals is longer by half
    than in the middle, and longer than a tenth of what runs.
    """
    if not len(log.columns) or len(sent_s) < 20:
        return False
    ends, waiting, running = log.column("end_s"), log.column("waiting"), log.column("running")
    last = float(sent_s.max())
    middle = (ends > 0.3 * last) & (ends <= 0.5 * last)
    tail = (ends > 0.8 * last) & (ends <= last)
    if not middle.any() or not tail.any():
        return False
    before, after = float(waiting[middle].mean()), float(waiting[tail].mean())
    return after > max(1.5 * before, 0.1 * float(running[tail].mean()), 1.0)

"""One scheduler, two clocks: plays a workload through core's scheduler on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...core.errors import CapacityError, RequestError, Stall
from ...core.execute.base import Capacity
from ...core.request import Request, SamplingParams
from ...core.schedule.ledger import Ledger
from ...core.schedule.scheduler import Scheduler, SchedulerParams
from ...core.workload import Workload, WorkloadRequest, segment_tokens
from ...policies.base import Policy
from ..cost.speculation import SpeculativeCost
from ..cost.step import StepCost
from ..result import LoadResult, Targets, summarise
from .clients import Clients, Frontend
from .executor import FILLER, VirtualClock, VirtualExecutor
from .recorder import Recorder, StepLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a simulation runs: the scheduler's limits, a policy, a cost model and the way to the engine."""

    params: SchedulerParams
    policy: Policy
    cost: StepCost | SpeculativeCost
    vocab_size: int
    frontend: Frontend = field(default_factory=Frontend)
    targets: Targets = field(default_factory=Targets)
    max_queued_requests: int | None = None  # beyond it a request is refused, as the server would
    stop_after_s: float | None = None  # of simulated time; what has not ended by then is left out
    error_band: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Replay:
    """What came of a simulation."""

    result: LoadResult
    log: StepLog
    frontend_busy: float  # share of the HTTP processes' time
    unfinished: int


def replay(setup: Setup, workload: Workload) -> Replay:
    """Runs the workload to its end (or to `stop_after_s`).

    Requests that can never run are counted as rejected. Raises CapacityError if that is all of them, Stall if the policy admits nobody for good.
    """
    return _Simulation(setup, workload).run()


class _Simulation:
    def __init__(self, setup: Setup, workload: Workload) -> None:
        self.setup = setup
        self.clock = VirtualClock()
        self.clients = Clients(workload, _fresh(setup.frontend))
        params = setup.params
        self.scheduler = Scheduler(params, setup.policy, Ledger(max_steps=2, max_requests=1))
        self.recorder = Recorder(params.max_num_seqs)
        self.shared = params.enable_prefix_caching and _shares(workload)
        self.told: dict[str, tuple[WorkloadRequest, float]] = {}
        self.answers: dict[str, WorkloadRequest] = {}
        capacity = Capacity(
            params.num_blocks, params.block_size, params.max_model_len, params.max_num_seqs, setup.vocab_size
        )
        longest = max((r.output_tokens for r in workload.requests()), default=1) if self.shared else 0
        self.executor = VirtualExecutor(
            setup.cost, capacity, self.clock, self.answers if self.shared else None, longest
        )
        self.rejected = 0
        self.refused = ""  # why the last one was

    def run(self) -> Replay:
        stop = self.setup.stop_after_s
        while stop is None or self.clock.now_s < stop:
            self._arrivals()
            plan = self.scheduler.schedule(self.clock.now_s)
            for request in self.scheduler.take_rejected():
                self._gone(request.id)
            if plan is None:
                upcoming = self.clients.next_s()
                if upcoming is None:
                    self._require_idle()
                    break
                self.clock.now_s = max(upcoming, self.clock.now_s)
                continue
            self._step(plan)
        return self._result()

    def _require_idle(self) -> None:
        if len(self.scheduler.waiting):
            raise Stall(
                f"{len(self.scheduler.waiting)} requests wait, nothing runs, and the policy admits nobody"
            )

    def _arrivals(self) -> None:
        for told, sent_s in self.clients.take(self.clock.now_s):
            limit = self.setup.max_queued_requests
            if limit is not None and len(self.scheduler.waiting) >= limit:
                self.rejected += 1
                self.clients.ended(told, self.clock.now_s)
                continue
            request = self._request(told, sent_s)
            self.told[request.id] = (told, sent_s)
            if self.shared:
                self.answers[request.id] = told
            try:
                self.scheduler.add(request, self.clock.now_s)
            except RequestError as error:
                self.refused = str(error)
                self._gone(request.id)

    def _request(self, told: WorkloadRequest, sent_s: float) -> Request:
        prompt = (
            segment_tokens(told.segments, self.setup.vocab_size)
            if self.shared
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

    def _step(self, plan) -> None:
        scheduler, recorder = self.scheduler, self.recorder
        blocked = scheduler.ledger.steps[-1].blocked
        recorder.started(plan)
        owners = plan.rows[plan.samples]
        result = self.executor.collect(self.executor.launch(plan))
        now = self.clock.now_s
        late = self.clients.frontend.stream(now, len(owners))
        recorder.tokens(owners, now + late)
        used = self.setup.params.num_blocks - scheduler.kv.num_free
        held = int((plan.starts + plan.num_tokens).sum())
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        update = scheduler.update(result, now)
        prefill = plan.total_tokens - plan.num_decodes
        row = (now, result.duration_ms, plan.num_decodes, prefill, running, waiting, used, held)
        recorder.step(row, self.executor.last, blocked)
        for news in update.news:
            request = news.request
            if news.first and late:
                request.first_token_s = now + late
            if request.finish_reason is not None:
                request.finished_s = now + late
                told, sent_s = self.told.pop(request.id)
                recorder.finished(told, request, news.row, sent_s)
                self._forget(request.id)
                self.clients.ended(told, now + late)

    def _gone(self, request_id: str) -> None:
        """A request the policy refused."""
        told, _ = self.told.pop(request_id)
        self._forget(request_id)
        self.rejected += 1
        self.clients.ended(told, self.clock.now_s)

    def _forget(self, request_id: str) -> None:
        self.answers.pop(request_id, None)

    def _result(self) -> Replay:
        self.scheduler.check_integrity()
        times, log = self.recorder.times(), self.recorder.log()
        if not len(times) and self.refused:
            raise CapacityError(f"no request of the workload can run: {self.refused}")
        gaps, counts = self.recorder.gaps()
        duration = float(log.column("end_s")[-1]) if len(log.columns) else 0.0
        result = summarise(times, gaps, counts, self.setup.targets, duration)
        result.preemptions, result.rejected = self.scheduler.preemptions, self.rejected
        prefix = self.scheduler.kv.prefix
        result.prefix_hit_rate = prefix.hits / prefix.queries if prefix.queries else 0.0
        result.kv = _kv_figures(log, self.setup.params)
        result.saturated = _saturated(log, times.sent_s, times.finished_s, len(self.told))
        result.error_band = dict(self.setup.error_band)
        busy = self.clients.frontend.busy_s / duration if duration else 0.0
        return Replay(result, log, busy, len(self.told))


def _fresh(frontend: Frontend) -> Frontend:
    return Frontend(frontend.latency_s, frontend.request_s, frontend.token_s, frontend.processes)


def _shares(workload: Workload) -> bool:
    """Whether any two prompts of the workload can have a prefix in common."""
    seen: set[int] = set()
    for request in workload.requests():
        first = request.segments[0].content if request.segments else -1
        if first in seen or request.after >= 0:
            return True
        seen.add(first)
    return False


def _filler(tokens: int) -> np.ndarray:
    return np.broadcast_to(np.int32(FILLER), tokens)


def _kv_figures(log: StepLog, params: SchedulerParams) -> dict[str, float]:
    """Blocks, the largest share in use, and the share of used slots that hold no token (time average)."""
    used, held, took = log.column("kv_blocks"), log.column("tokens_held"), log.column("duration_ms")
    if not len(used):
        return {"blocks": params.num_blocks, "peak_used": 0.0, "mean_used": 0.0, "waste": 0.0}
    slots = float((used * took).sum()) * params.block_size
    return {
        "blocks": params.num_blocks,
        "tokens": params.num_blocks * params.block_size,
        "peak_used": float(used.max()) / params.num_blocks,
        "mean_used": float((used * took).sum() / took.sum()) / params.num_blocks,
        "waste": max(0.0, 1 - float((held * took).sum()) / slots) if slots else 0.0,
    }


def _saturated(log: StepLog, sent_s: np.ndarray, finished_s: np.ndarray, unfinished: int) -> bool:
    """Whether work piled up: the queue's mean over the last fifth of the arrivals exceeds that of the middle
    by half and by more than a tenth of what runs."""
    if not len(log.columns) or len(sent_s) < 20:
        return unfinished > 0
    ends, waiting, running = log.column("end_s"), log.column("waiting"), log.column("running")
    last = float(sent_s.max())
    middle = (ends > 0.3 * last) & (ends <= 0.5 * last)
    tail = (ends > 0.8 * last) & (ends <= last)
    if not middle.any() or not tail.any():
        return False
    before, after = float(waiting[middle].mean()), float(waiting[tail].mean())
    return after > max(1.5 * before, 0.1 * float(running[tail].mean()), 1.0)

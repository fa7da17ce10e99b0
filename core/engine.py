"""The engine: a scheduler, an executor and a clock, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..policies.registry import PolicyFile
from .config import ServeConfig, required
from .emit import Emitter
from .errors import OutOfMemory, RequestError
from .execute.base import Capacity, Executor, Relievable
from .messages import Output, Outputs, Ready, Stats
from .recording.recorder import Recorder
from .request import FINISH_ERROR, FINISH_REJECTED, Request
from .schedule.params import SchedulerParams
from .schedule.plan import StepPlan, StepResult
from .schedule.recovery import Relief, start_over, take_back
from .schedule.scheduler import Scheduler


class Engine:
    """Takes requests, makes steps, gives outputs. Not safe for several threads; one loop owns it.

    config: resolved, so that every knob has its value.
    """

    def __init__(
        self,
        config: ServeConfig,
        executor: Executor,
        policy: PolicyFile,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.clock = clock
        self._executor, self._policy = executor, policy
        self._recorder: Recorder | None = None
        self._launched: Any = None  # the step in flight of the overlapped loop
        self.blocked = False  # the last step found nothing to run, nor one to wait for
        self._requests: dict[int, Request] = {}

    def open(self) -> Ready:
        """Loads the model and sizes the cache. Raises ModelError, CapacityError or ConfigError."""
        self.capacity = self._executor.open()
        params = scheduler_params(self.config, self.capacity)
        self.scheduler = Scheduler(params, self._policy.build())
        if self.config.record:
            self._recorder = Recorder(self.config.record, self.scheduler, self._policy)
        self.emitter = Emitter(self.scheduler)
        self._relief = Relief(params.max_num_batched_tokens)
        return Ready(
            max_model_len=self.scheduler.params.max_length,
            num_blocks=self.capacity.num_blocks,
            block_size=self.capacity.block_size,
            max_num_seqs=self.scheduler.params.max_num_seqs,
            policy=self.scheduler.guard.name,
            memory=self.capacity.memory,
            vocab_size=self.capacity.vocab_size,
        )

    def add(self, request: Request) -> None:
        """Queues a request. Raises RequestError if it can never run."""
        largest = int(request.prompt.max(initial=0))
        if largest >= self.capacity.vocab_size or int(request.prompt.min(initial=0)) < 0:
            raise RequestError(
                f"token id {largest} is outside the vocabulary of {self.capacity.vocab_size}", "prompt"
            )
        now_s = self.clock()
        self.scheduler.add(request, now_s)
        if self._recorder:
            self._recorder.added(request, now_s)
        self._requests[request.handle] = request

    def abort(self, handles: list[int]) -> None:
        """Ends requests and frees what they hold; unknown handles are ignored."""
        for handle in handles:
            request = self._requests.pop(handle, None)
            if request is None:
                continue
            now_s = self.clock()
            self.scheduler.abort(request, now_s)
            if self._recorder:
                self._recorder.aborted(request, now_s)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def step(self) -> Outputs:
        """One step: plan, launch, collect, update, emit. Empty if nothing could run now."""
        if self.config.async_scheduling:
            return self._step_overlapped()
        plan, outputs = self._plan()
        self.blocked = plan is None
        launched = self._launch(plan, outputs)
        return Outputs(outputs) if launched is None else self._finish(launched, outputs)

    def _step_overlapped(self) -> Outputs:
        """The same, one step ahead: the next step is planned and launched before the last one's tokens
        are read, so the device never waits for the host. Tokens come out one call later.
        """
        plan, outputs = self._plan()
        behind, self._launched = self._launched, None
        self.blocked = plan is None and behind is None
        self._launched = self._launch(plan, outputs)
        return Outputs(outputs) if behind is None else self._finish(behind, outputs)

    def _plan(self) -> tuple[StepPlan | None, list[Output]]:
        """The next plan, and the outputs of requests that the policy refused."""
        now_s = self.clock()
        plan = self.scheduler.schedule(now_s)
        rejected = self.scheduler.take_rejected()
        if self._recorder:
            self._recorder.planned(plan, now_s, rejected)
        return plan, [self._rejected(request) for request in rejected]

    def _launch(self, plan: StepPlan | None, outputs: list[Output]) -> Any:
        """Starts a step. None if there is none, or the device had no memory for it: then it is taken back."""
        if plan is None:
            return None
        try:
            return self._executor.launch(plan)
        except OutOfMemory as error:
            why = str(error)
        self._recover(plan, why, outputs, launched=False)
        return None

    def _recover(self, plan: StepPlan, why: str, outputs: list[Output], *, launched: bool) -> None:
        """Makes room after a step that ran out of memory; whom no step can serve ends with an error."""
        if isinstance(self._executor, Relievable):
            self._executor.relieve()
        hopeless = self._relief.failed(plan.total_tokens)
        now_s, limit = self.clock(), self._relief.limit
        way = start_over if launched else take_back
        retreat = way(self.scheduler, now_s, limit, why if hopeless else None)
        if self._recorder:
            self._recorder.recovered(launched, now_s, limit, retreat.given_up)
        for request in retreat.given_up:
            self._requests.pop(request.handle, None)
            outputs.append(Output(request.handle, [], FINISH_ERROR, error=request.error, retryable=True))

    def _finish(self, launched: Any, outputs: list[Output]) -> Outputs:
        """Waits for a launched step and gives what came of it, `outputs` first."""
        try:
            result = self._executor.collect(launched)
        except OutOfMemory as error:
            why = str(error)
        else:
            return self._take(result, outputs)
        self._launched = None  # it built on the step that is lost
        self._recover(self.scheduler.oldest_plan, why, outputs, launched=True)
        return Outputs(outputs)

    def _take(self, result: StepResult, outputs: list[Output]) -> Outputs:
        """Tells scheduler, recording and clients of a step's result."""
        owners = self.emitter.owners(result)
        now_s = self.clock()
        update = self.scheduler.update(result, now_s)
        if self._recorder:
            self._recorder.updated(result, update, now_s)
        if update.news:
            for request in update.finished:
                self._requests.pop(request.handle, None)
        if self._relief.succeeded():
            self.scheduler.token_limit = self._relief.limit
            if self._recorder:
                self._recorder.limited(self._relief.limit)
        return self.emitter.emit(update, result, owners, outputs)

    def stats(self) -> Stats:
        """Gauges and totals; the per-step lists start afresh with each call."""
        stats = self.emitter.stats()
        if self._relief.out_of_memory:
            stats.figures["out_of_memory"] = self._relief.out_of_memory
        return stats

    def check_integrity(self) -> None:
        """Raises IntegrityError naming the first broken invariant."""
        self.scheduler.check_integrity()

    def query(self, what: str, argument: str = "") -> dict[str, Any]:
        """Answers `explain` (of a request id), `memory` and `integrity`."""
        if what == "explain":
            told = self.scheduler.ledger.explain(argument)
            return told or {"error": f"no request {argument!r} among the latest ones"}
        if what == "memory":
            return self.capacity.memory
        if what == "integrity":
            self.check_integrity()
            return {"ok": True, "free_blocks": self.scheduler.kv.num_free}
        return {"error": f"unknown question {what!r}"}

    def close(self) -> None:
        """Frees the executor's memory and completes the recording; safe to call twice."""
        if self._recorder:
            self._recorder.close()
        self._executor.close()

    def _rejected(self, request: Request) -> Output:
        self._requests.pop(request.handle, None)
        return Output(request.handle, [], finish_reason=FINISH_REJECTED, error=request.error, retryable=True)


def scheduler_params(config: ServeConfig, capacity: Capacity) -> SchedulerParams:
    """The limits of a scheduler, from a configuration and what the executor can hold.

    Raises ConfigError where the configuration is not resolved.
    """
    return SchedulerParams(
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        max_model_len=capacity.max_model_len,
        max_num_seqs=capacity.max_num_seqs,
        max_num_batched_tokens=required(config.max_num_batched_tokens, "max_num_batched_tokens"),
        eos_token_ids=capacity.eos_token_ids,
        enable_prefix_caching=required(config.enable_prefix_caching, "enable_prefix_caching"),
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=required(
            config.long_prefill_token_threshold, "long_prefill_token_threshold"
        ),
        max_wait_s=required(config.max_wait_s, "max_wait_s"),
        reserve_full_prompt=required(config.scheduler_reserve_full_isl, "scheduler_reserve_full_isl"),
    )

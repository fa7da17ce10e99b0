"""Drives an opened engine in-process with a workload, on whatever clock the engine has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ...core.engine import Engine
from ...core.errors import RequestError
from ...core.messages import Output
from ...core.request import Request, SamplingParams
from ...core.workload import Segment, Workload, WorkloadRequest, segment_tokens
from ..feeder import Feeder
from ..results import KvUse, RequestRecord, Result, Targets, summarise
from .gaps import TokenTimes
from .warm_up import WARM_UP_SEED, warm_up_load

IDLE_S = 0.0005  # how long to wait when the policy lets nobody run

Progress = Callable[[int, int], None]  # requests ended, output tokens so far


@dataclass(slots=True)
class OfflineRun:
    """What one run left: the requests, their token times and the engine's own figures."""

    records: list[RequestRecord]
    times: TokenTimes
    kv: KvUse
    preemptions: int
    steps: int
    step_ms: np.ndarray  # of each step, by the executor
    samples: dict[str, str] = field(default_factory=dict)  # one full message of each kind of failure

    def result(self, targets: Targets | None = None) -> Result:
        """The figures of the run."""
        return summarise(
            self.records, self.times.gaps_ms(), targets=targets, kv=self.kv, preemptions=self.preemptions
        )


def drive(
    engine: Engine,
    workload: Workload,
    *,
    wait: Callable[[float], None] = time.sleep,
    progress: Progress | None = None,
    seed: int = 0,
) -> OfflineRun:
    """Plays a workload on an opened engine until every request has ended. Greedy, no early stop.

    `wait` passes time when nothing can run: on a virtual clock it moves the clock. The engine must have
    no other work. Requests that it refuses count as failed.
    """
    driver = _Driver(engine, Feeder(workload), progress, seed)
    driver.begin()
    while not driver.feeder.done:
        driver.admit()
        if engine.has_work:
            driver.step(wait)
        else:
            driver.pass_time(wait)
    return driver.run()


@dataclass(slots=True)
class _Driver:
    engine: Engine
    feeder: Feeder
    progress: Progress | None
    seed: int
    times: TokenTimes = field(default_factory=TokenTimes)
    records: dict[int, RequestRecord] = field(default_factory=dict)
    requests: dict[int, WorkloadRequest] = field(default_factory=dict)  # that run now
    said: dict[int, tuple[np.ndarray, list[int]]] = field(default_factory=dict)  # session -> prompt, answer
    started_s: float = 0.0
    ended: int = 0
    tokens: int = 0
    peak_used: int = 0
    waste_sum: float = 0.0
    waste_samples: int = 0
    step_ms: list[float] = field(default_factory=list)
    samples: dict[str, str] = field(default_factory=dict)
    first: tuple[int, int, int] = (0, 0, 0)  # preemptions, prefix queries and hits before the run
    steps: int = 0

    def begin(self) -> None:
        stats = self.engine.stats()
        self.first = (stats.preemptions, stats.prefix_queries, stats.prefix_hits)
        self.started_s = self.engine.clock()

    def now_s(self) -> float:
        return self.engine.clock() - self.started_s

    def admit(self) -> None:
        now = self.now_s()
        for request in self.feeder.due(now):
            self.times.grow(request.index + 1)
            arrival = self.feeder.start_s(request, now)
            record = RequestRecord(request.index, arrival, request.input_tokens, tenant=request.tenant)
            self.records[request.index] = record
            try:
                self.engine.add(self._request(request, arrival))
                self.requests[request.index] = request
            except RequestError as error:
                self._fail(record, "refused", str(error))
                self._ended(request, now)

    def _request(self, request: WorkloadRequest, arrival_s: float) -> Request:
        prompt = self._prompt(request)
        deadline = (
            None if request.deadline_ms is None else self.started_s + arrival_s + request.deadline_ms / 1e3
        )
        return Request(
            id=f"bench-{request.index}",
            prompt=prompt,
            params=SamplingParams(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True),
            arrival_s=self.started_s + arrival_s,
            priority=request.priority,
            tenant=request.tenant,
            deadline_s=deadline,
            handle=request.index,
        )

    def _prompt(self, request: WorkloadRequest) -> np.ndarray:
        """The prompt; of a later turn, what was really answered before stands in it."""
        vocab = self.engine.capacity.vocab_size
        before = self.said.get(request.session)
        if request.turn == 0 or before is None:
            return segment_tokens(request.segments, vocab, self.seed)
        prompt, answer = before
        known = len(prompt) + len(answer)
        tail = _after(request.segments, known)
        return np.concatenate(
            [prompt, np.asarray(answer, dtype=np.int32), segment_tokens(tail, vocab, self.seed)]
        )

    def step(self, wait: Callable[[float], None]) -> None:
        outputs = self.engine.step()
        now = self.now_s()
        self.steps += 1
        handles = np.frombuffer(outputs.handles, dtype=np.int32)
        if len(handles):
            self.times.record(handles, now)
            self.tokens += len(handles)
            self._remember(handles, np.frombuffer(outputs.tokens, dtype=np.int32))
        for output in outputs.outputs:
            self._take(output, now)
        self._sample_stats()
        if not len(handles) and not outputs.outputs and not len(self.engine.scheduler.running):
            wait(IDLE_S)

    def _remember(self, handles: np.ndarray, tokens: np.ndarray) -> None:
        if not self.said:
            return
        for handle, token in zip(handles.tolist(), tokens.tolist(), strict=True):
            held = self.said.get(self.requests[handle].session)
            if held is not None:
                held[1].append(token)

    def _take(self, output: Output, now: float) -> None:
        request = self.requests[output.handle]
        if output.tokens:
            self.times.record(np.array([output.handle]), now, len(output.tokens))
            self.tokens += len(output.tokens)
            self._hear(request, output)
        if output.cached_tokens is not None:
            self.records[output.handle].cached_tokens = output.cached_tokens
        if output.finish_reason is not None:
            if output.finish_reason not in ("stop", "length"):
                self._fail(self.records[output.handle], output.finish_reason, output.error or "")
            self._ended(request, now)

    def _hear(self, request: WorkloadRequest, output: Output) -> None:
        if request.session < 0:
            return
        if output.cached_tokens is not None:  # the first token of this turn
            self.said[request.session] = (self._prompt(request), [])
        self.said[request.session][1].extend(output.tokens)

    def _ended(self, request: WorkloadRequest, now: float) -> None:
        self.requests.pop(request.index, None)
        record = self.records[request.index]
        if record.error is None:
            record.finished_s = now
        self.ended += 1
        self.feeder.finished(request, now)
        if self.progress is not None:
            self.progress(self.ended, self.tokens)

    def _fail(self, record: RequestRecord, kind: str, message: str) -> None:
        record.error = kind
        self.samples.setdefault(kind, message)

    def _sample_stats(self) -> None:
        scheduler = self.engine.scheduler
        self.peak_used = max(self.peak_used, scheduler.kv.pool.num_used)
        if self.steps % 16 == 1:
            stats = self.engine.stats()
            self.step_ms.extend(stats.step_ms)
            if stats.running:
                self.waste_sum += stats.waste
                self.waste_samples += 1

    def pass_time(self, wait: Callable[[float], None]) -> None:
        upcoming = self.feeder.next_s()
        if upcoming is not None:
            wait(max(upcoming - self.now_s(), 0.0))

    def run(self) -> OfflineRun:
        stats = self.engine.stats()
        self.step_ms.extend(stats.step_ms)
        preemptions, queries, hits = self.first
        asked = stats.prefix_queries - queries
        p99 = self.times.p99_by_request()
        for record in self.records.values():
            record.output_tokens = int(self.times.tokens[record.index])
            first, gap = self.times.first_s[record.index], p99[record.index]
            record.first_token_s = None if np.isnan(first) else float(first)
            record.itl_p99_ms = None if np.isnan(gap) else float(gap)
        kv = KvUse(
            blocks=stats.total_blocks,
            peak_used=self.peak_used,
            waste=self.waste_sum / max(self.waste_samples, 1),
            hit_rate=(stats.prefix_hits - hits) / asked if asked else None,
        )
        return OfflineRun(
            [self.records[index] for index in sorted(self.records)],
            self.times,
            kv,
            stats.preemptions - preemptions,
            self.steps,
            np.asarray(self.step_ms),
            self.samples,
        )


def _after(segments: Iterable[Segment], known: int) -> tuple[Segment, ...]:
    """The segments from `known` tokens on; that must be where one begins."""
    rest: list[Segment] = []
    for segment in segments:
        if known <= 0:
            rest.append(segment)
        known -= segment.tokens
    return tuple(rest)


def warm_up(
    engine: Engine, workload: Workload, requests: int, wait: Callable[[float], None] = time.sleep
) -> None:
    """Runs the first few requests of a load with other contents and short answers, and forgets them."""
    if requests > 0:
        drive(engine, warm_up_load(workload, requests), wait=wait, seed=WARM_UP_SEED)

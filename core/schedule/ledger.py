"""Why each request ran, waited or was evicted. Steps are kept as arrays; prose is made when someone asks."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from ...policies.base import Budget
from ..request import Request


class Blocked(Enum):
    """Why the first request that could not start did not."""

    NONE = "nobody was held back"
    NO_SLOT = "all max_num_seqs slots were taken"
    NO_BUDGET = "the step's token budget was spent"
    NO_BLOCKS = "the KV cache had too few free blocks"
    POLICY = "the policy deferred it"
    SIBLING = "the prompt it shares was still being computed"
    NO_MEMORY = "the device ran out of memory"


def _nobody() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class StepRecord:
    """One step. seqs, starts and num_tokens are aligned; seqs are arrival numbers."""

    step: int
    start_s: float
    waiting: int
    blocked: Blocked
    blocked_seq: int = -1
    seqs: np.ndarray = field(default_factory=_nobody)
    starts: np.ndarray = field(default_factory=_nobody)
    num_tokens: np.ndarray = field(default_factory=_nobody)
    num_decodes: int = 0
    admitted: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()
    budget: Budget | None = None  # None: no step was made
    duration_ms: float = 0.0
    idle: bool = False  # no step, but the time in which nobody who waited could run


class Ledger:
    """The last `max_steps` steps and the last `max_requests` requests."""

    def __init__(self, *, max_steps: int = 8192, max_requests: int = 4096) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=max_steps)
        self._lives: OrderedDict[str, Request] = OrderedDict()
        self._max_requests = max_requests

    def arrived(self, request: Request) -> None:
        self._lives[request.id] = request
        if len(self._lives) > self._max_requests:
            self._lives.popitem(last=False)

    def record(self, step: StepRecord) -> None:
        before = self.steps[-1] if self.steps else None
        if before is not None and before.idle:
            before.duration_ms = (step.start_s - before.start_s) * 1e3
            if step.idle and (step.blocked, step.blocked_seq) == (before.blocked, before.blocked_seq):
                return
        self.steps.append(step)

    def undone(self, count: int, instead: StepRecord) -> None:
        """The newest `count` steps were undone; `instead` says what that led to."""
        for _ in range(min(count, len(self.steps))):
            self.steps.pop()
        self.record(instead)

    def finished(self, step: int, duration_ms: float) -> None:
        """The step's duration, once known; steps finish in order, so it is among the latest."""
        for record in reversed(self.steps):
            if record.step == step:
                record.duration_ms = duration_ms
                return

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """The life of a request, in order: arrival, waits with their reason, chunks, tokens, evictions.

        Returns None for an unknown id. Times are milliseconds since arrival; steps that left the ledger
        are missing, and `complete` says so.
        """
        request = self._lives.get(request_id)
        if request is None:
            return None
        events: list[dict[str, Any]] = []
        known = request.prompt_len  # tokens that the request had before the step
        for record in self.steps:
            if record.start_s * 1e3 + record.duration_ms < request.arrival_s * 1e3:
                continue
            if request.finished_s is not None and record.start_s > request.finished_s:
                break
            self._step_events(record, request, events)
            told = events[-1]
            if told["event"] == "token":
                known = told["start"] + 2
            elif told["event"] == "chunk":
                told["drew"] = told["start"] + told["tokens"] == known  # the last chunk gives a token, too
                told["cut_to"] = None if told["drew"] else _cut_to(record, told["tokens"])
                known += told["drew"]
        first = self.steps[0].start_s if self.steps else 0.0
        # Of one that runs, tokens that are not yet handed on, too.
        drawn = 0 if request.finished_s is not None else known - request.prompt_len
        return {
            "id": request.id,
            "arrival_s": request.arrival_s,
            "state": request.state.name.lower(),
            "prompt_tokens": request.prompt_len,
            "cached_tokens": request.cached_tokens,
            "output_tokens": max(len(request.output), drawn),
            "priority": request.priority,
            "tenant": request.tenant,
            "preemptions": request.preemptions,
            "queued_ms": _since(request, request.first_scheduled_s),
            "first_token_ms": _since(request, request.first_token_s),
            "finished_ms": _since(request, request.finished_s),
            "finish_reason": request.finish_reason,
            "why": request.error,
            "complete": len(self.steps) < (self.steps.maxlen or 0) or first <= request.arrival_s,
            "events": events,
        }

    def _step_events(self, record: StepRecord, request: Request, events: list[dict[str, Any]]) -> None:
        since_ms = (record.start_s - request.arrival_s) * 1e3
        at = {"step": record.step, "at_ms": round(max(0.0, since_ms), 3)}
        if request.seq in record.evicted:
            why = record.blocked if record.blocked is Blocked.NO_MEMORY else Blocked.NO_BLOCKS
            events.append({**at, "event": "evicted", "why": why.value})
        places = np.nonzero(record.seqs == request.seq)[0]
        if len(places):
            place = int(places[0])
            kind = "token" if place < record.num_decodes else "chunk"
            if request.seq in record.admitted:
                events.append({**at, "event": "admitted"})
            events.append(
                {
                    **at,
                    "event": kind,
                    "start": int(record.starts[place]),
                    "tokens": int(record.num_tokens[place]),
                    "batch_tokens": int(record.num_tokens.sum()),
                    "step_ms": round(record.duration_ms, 3),
                }
            )
            return
        why = self._why_not(record, request)
        last, until_ms = events[-1] if events else {}, round(since_ms + record.duration_ms, 3)
        if last.get("event") == "waited" and last["why"] == why:
            last["until_ms"] = until_ms
            last["steps"] += not record.idle
        else:
            events.append(
                {**at, "event": "waited", "why": why, "until_ms": until_ms, "steps": int(not record.idle)}
            )

    def _why_not(self, record: StepRecord, request: Request) -> str:
        if record.start_s < request.arrival_s and not record.idle:
            return "a step was under way when it arrived"
        why = _no_budget(record) if record.blocked is Blocked.NO_BUDGET else record.blocked.value
        if record.blocked_seq == request.seq or record.blocked in (Blocked.NO_SLOT, Blocked.NO_MEMORY):
            return why
        if record.blocked is Blocked.NONE:
            return "its turn had not come in this step"
        return f"others went first; the one at the front was held back because {why}"


def _no_budget(record: StepRecord) -> str:
    """Which of the limits on a step's tokens was reached."""
    budget = record.budget
    if budget is not None and not budget.chunked:
        return "the policy takes prompts whole, and the step had too few tokens left for it"
    if budget is not None and _prompt_tokens(record) == budget.prefill_tokens:
        return "the tokens that the policy gives prompts in a step were spent"
    return Blocked.NO_BUDGET.value


def _cut_to(record: StepRecord, tokens: int) -> str | None:
    """What kept a chunk of so many tokens from being longer; None for want of blocks."""
    budget = record.budget
    if budget is None:
        return None
    if tokens == budget.chunk_tokens:
        return f"{tokens} tokens a prompt"
    if _prompt_tokens(record) == budget.prefill_tokens:
        return f"the policy's {budget.prefill_tokens} tokens for prompts"
    spent = int(record.num_tokens.sum()) >= budget.tokens
    return f"the step's budget of {budget.tokens} tokens" if spent else None


def _prompt_tokens(record: StepRecord) -> int:
    return int(record.num_tokens[record.num_decodes :].sum())


def _since(request: Request, moment_s: float | None) -> float | None:
    return None if moment_s is None else round((moment_s - request.arrival_s) * 1e3, 3)

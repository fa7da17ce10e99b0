"""From a scheduler's update to the messages that leave the engine, and the figures beside them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .messages import Output, Outputs, Stats, Timing
from .request import FINISH_STOP, Request
from .schedule.outcome import News, Update
from .schedule.plan import StepResult
from .schedule.scheduler import Scheduler


class Emitter:
    """Turns updates into Outputs and keeps the totals that Stats reports."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._iteration_tokens: list[int] = []
        self._step_ms: list[float] = []
        self._figures: Counter[str] = Counter()

    def owners(self, result: StepResult) -> dict[int, Request]:
        """The request of each row whose prompt log-probabilities the result carries.

        Call it before the scheduler's `update`, where rows may change hands.
        """
        return {
            row: request
            for row in result.prompt_logprobs
            if (request := self._scheduler.owner(row)) is not None
        }

    def emit(
        self, update: Update, result: StepResult, owners: dict[int, Request], outputs: list[Output]
    ) -> Outputs:
        """Everything a step has to tell, `outputs` first."""
        last = self._scheduler.last
        if last is not None:
            self._prompt_tokens += last.prefill_tokens
            self._iteration_tokens.append(last.prefill_tokens + last.decode_tokens)
            self._step_ms.append(last.duration_ms)
        if result.extra:
            self._figures.update(result.extra)
        self._generation_tokens += len(update.plain_rows)
        if update.news or result.prompt_logprobs:
            self._tell(update, result, owners, outputs)
        handles = self._scheduler.rows.handle[update.plain_rows]
        return Outputs(
            outputs,
            handles=handles.tobytes(),
            tokens=update.plain_tokens.astype(np.int32, copy=False).tobytes(),
        )

    def _tell(
        self, update: Update, result: StepResult, owners: dict[int, Request], outputs: list[Output]
    ) -> None:
        """An Output for each sequence with news, and for prompts whose positions were scored."""
        self._generation_tokens += sum(len(news.tokens) for news in update.news)
        outputs.extend(_output(news, result) for news in update.news)
        told = {news.request.handle for news in update.news}
        for row, positions in result.prompt_logprobs.items():
            request = owners.get(row)
            if request is None:
                continue
            request.prompt_scored += len(positions)
            if request.handle not in told:
                outputs.append(Output(request.handle, [], prompt_logprobs=positions))

    def stats(self) -> Stats:
        """Gauges now and totals since start; the per-step lists start afresh."""
        scheduler = self._scheduler
        pool, prefix = scheduler.kv.pool, scheduler.kv.prefix
        stats = Stats(
            step=scheduler.step,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            used_blocks=pool.num_used,
            total_blocks=pool.num_blocks,
            prefix_queries=prefix.queries,
            prefix_hits=prefix.hits,
            preemptions=scheduler.preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            policy_faults=scheduler.guard.faults,
            waste=scheduler.running.waste(),
            iteration_tokens=self._iteration_tokens,
            step_ms=self._step_ms,
            figures=dict(self._figures),
        )
        self._iteration_tokens, self._step_ms = [], []
        return stats


def _output(news: News, result: StepResult) -> Output:
    request = news.request
    logprobs = result.logprobs.get(news.row)
    output = Output(
        request.handle,
        news.tokens,
        logprobs=None if logprobs is None else [logprobs],
        prompt_logprobs=result.prompt_logprobs.get(news.row),
        cached_tokens=request.cached_tokens if news.first else None,
    )
    if request.finish_reason is not None:
        output.finish_reason = request.finish_reason
        output.stop_token = news.tokens[-1] if request.finish_reason == FINISH_STOP else None
        output.timing = _timing(request)
        output.error = request.error
    return output


def _timing(request: Request) -> Timing:
    def between_ms(start: float | None, end: float | None) -> float:
        return 0.0 if start is None or end is None else (end - start) * 1e3

    return Timing(
        queued_ms=between_ms(request.arrival_s, request.first_scheduled_s),
        prefill_ms=between_ms(request.first_scheduled_s, request.first_token_s),
        decode_ms=between_ms(request.first_token_s, request.finished_s),
        preemptions=request.preemptions,
        cached_tokens=request.cached_tokens,
    )

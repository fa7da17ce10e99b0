"""What came of a step: who got a token, who ended, which blocks others may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..request import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, Request
from .plan import StepPlan, StepResult
from .running import Running

Finish = Callable[[Request, str, float], None]


@dataclass(slots=True)
class InFlight:
    """A launched step, with what the scheduler needs of it when its tokens come back."""

    plan: StepPlan
    seqs: np.ndarray  # int64, aligned with the plan's rows: arrival numbers, to tell if a row changed hands
    sampled: np.ndarray  # intp: the rows that sample
    reached: np.ndarray  # int32, aligned with them: where their new token stands
    turnover: int  # Rows.turnover when the plan was made
    context_tokens: int  # tokens in the cache that its attention reads
    total_tokens: int


class News(NamedTuple):
    """A sequence with more to say than one more token."""

    request: Request
    tokens: list[int]
    row: int  # the row it had when the step was planned
    first: bool  # its first token is among them


@dataclass(slots=True)
class Update:
    """What a step brought."""

    plain_rows: np.ndarray  # intp: rows with one more token and nothing else to say
    plain_tokens: np.ndarray  # int32, aligned
    news: list[News] = field(default_factory=list)

    @property
    def finished(self) -> list[Request]:
        return [news.request for news in self.news if news.request.finish_reason is not None]


class Outcome:
    """Takes results in. `finish` ends a request: (request, reason, now_s)."""

    def __init__(self, running: Running, finish: Finish) -> None:
        self._running, self._finish = running, finish
        self._eos = running.params.eos_token_ids

    def take(self, flight: InFlight, result: StepResult, now_s: float) -> Update:
        """Appends the tokens of a step, ends who has ended, offers finished blocks for reuse."""
        columns = self._running.rows
        rows, tokens, places = self._still_running(flight, result)
        columns.tokens[rows, places] = tokens
        known = places + 1
        columns.known[rows] = known
        if flight.plan.num_decodes < len(flight.plan.rows):
            self._offer_prompts(flight)
        update = self._sort(rows, tokens, known, now_s)
        for row, why in result.failed.items():
            request = columns.requests[row]
            if request is not None:
                request.error = why
                self._finish(request, FINISH_ERROR, now_s)
                update.news.append(News(request, [], row, False))
        return update

    def _still_running(
        self, flight: InFlight, result: StepResult
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of the result, their tokens and where these stand in the sequence, without the rows that
        changed hands since the plan was made.
        """
        columns = self._running.rows
        if columns.turnover == flight.turnover:
            return flight.sampled, result.tokens, flight.reached
        same = columns.seq[flight.sampled] == flight.seqs[flight.plan.samples]
        return flight.sampled[same], result.tokens[same], flight.reached[same]

    def _offer_prompts(self, flight: InFlight) -> None:
        """Blocks of prompt chunks just computed can serve other requests from now on."""
        plan, columns = flight.plan, self._running.rows
        for place in range(plan.num_decodes, len(plan.rows)):
            row = int(plan.rows[place])
            if columns.seq[row] != flight.seqs[place]:
                continue
            start = int(plan.starts[place])
            done = min(start + int(plan.num_tokens[place]), int(columns.known[row]))
            self._running.kv.commit(row, columns.request(row), columns.tokens[row, :done], start)

    def _sort(self, rows: np.ndarray, tokens: np.ndarray, known: np.ndarray, now_s: float) -> Update:
        """Splits rows into those with just a token and those with more to say; ends the ended.

        known: int32, aligned with rows, tokens each has now.
        """
        columns = self._running.rows
        ended = known >= columns.limit[rows]
        for eos in self._eos:
            hits = tokens == eos
            if hits.any():
                ended |= hits & columns.stops_at_eos[rows]
        if not columns.num_special and not ended.any():
            return Update(rows, tokens)
        plain = columns.plain[rows] & ~ended
        update = Update(rows[plain], tokens[plain])
        for row, token in zip(rows[~plain].tolist(), tokens[~plain].tolist(), strict=True):
            request = columns.request(row)
            reason = self._end_reason(request, row, token)
            first = request.first_token_s is None
            if first:
                request.first_token_s = now_s
            update.news.append(News(request, [token], row, first))
            if reason is not None:
                self._finish(request, reason, now_s)
            elif request.params.logprobs is None and not request.params.stop_token_ids:
                columns.make_plain(row)
        return update

    def _end_reason(self, request: Request, row: int, token: int) -> str | None:
        params, columns = request.params, self._running.rows
        if token in params.stop_token_ids or (token in self._eos and not params.ignore_eos):
            return FINISH_STOP
        return FINISH_LENGTH if columns.known[row] >= columns.limit[row] else None

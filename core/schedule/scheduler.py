"""The scheduler: one `schedule()`, one `update()`.

There is no prefill phase and no decode phase. Each request has tokens computed and tokens to reach; a step
hands out tokens until a budget is spent. Chunked prefill, prefix caching and the return from an eviction all
fall out of that. The policy advises (through the guard); what must be right is decided here.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...policies.base import Budget, Policy, StepSample, StepView, Verdict
from ..errors import RequestError, Stall
from ..kv.cache import KVCache, Match
from ..request import FINISH_ABORT, FINISH_ERROR, FINISH_LENGTH, FINISH_REJECTED, FINISH_STOP, Request, State
from .accounting import Accounts
from .batch import Batch
from .guard import Guard
from .ledger import Blocked, Ledger, StepRecord
from .plan import StepPlan, StepResult
from .rows import Rows
from .views import View
from .waiting import WaitingQueue

MAX_EVICTIONS = 8  # a request evicted so often is spared while another can give way
MAX_DEFERRALS = 32  # deferred candidates looked past in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParams:
    """The limits a scheduler works within. Lengths in tokens."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool | None = None  # None: as the policy says
    long_prefill_token_threshold: int = 0  # 0 is no cap on a prompt's share of a step
    max_wait_s: float = 120.0  # whoever waited longer goes first
    reserve_full_prompt: bool = True  # a prompt starts only when all of it has blocks
    watermark: float = 0.01  # share of the blocks kept free when a request starts beside others
    window: int = 128  # waiting requests a dynamic policy is asked about in one step

    @property
    def max_length(self) -> int:
        """Tokens that one sequence may reach: the context, or the whole cache if that is smaller."""
        return min(self.max_model_len, self.num_blocks * self.block_size)


class News(NamedTuple):
    """A sequence with more to say than one more token."""

    request: Request
    tokens: list[int]
    row: int  # the row it had when the step was planned
    first: bool  # its first token is among them


@dataclass(slots=True)
class Update:
    """What `update` found."""

    plain_rows: np.ndarray  # int32: rows with one more token and nothing else to say
    plain_tokens: np.ndarray  # int32, aligned
    news: list[News] = field(default_factory=list)

    @property
    def finished(self) -> list[Request]:
        return [news.request for news in self.news if news.request.finish_reason is not None]


class Scheduler:
    """Decides, step by step, which tokens of which requests are computed.

    Deterministic: the same calls with the same clock values give the same plans.
    """

    def __init__(self, params: SchedulerParams, policy: Policy, ledger: Ledger | None = None) -> None:
        self.params = params
        self.guard = Guard(policy)
        self.ledger = ledger or Ledger()
        self.rows = Rows(params.max_num_seqs, params.max_length)
        self.kv = KVCache(
            num_blocks=params.num_blocks,
            block_size=params.block_size,
            max_rows=params.max_num_seqs,
            max_tokens=params.max_length,
            prefix_caching=params.enable_prefix_caching,
        )
        self.waiting = WaitingQueue(dynamic=self.guard.dynamic, window=params.window)
        self.decoding: list[int] = []  # rows with one token to compute, in order of admission
        self.prefilling: list[int] = []  # rows with more
        self.accounts = Accounts(enabled=self.guard.accounts)
        self.preemptions = 0
        self.step = 0
        self.last: StepSample | None = None
        self._decode_arrays: _Decodes | None = None  # `decoding` as arrays; None when it has changed
        self._by_id: dict[str, Request] = {}
        self._views: dict[int, View] = {}
        self._removed: list[int] = []
        self._rejected: list[Request] = []
        self._in_flight: deque[_InFlight] = deque()
        self._next_seq = 0
        self._batch_width = 0  # members of a padded batch since it was last empty

    # --- requests come and go

    def add(self, request: Request, now_s: float) -> None:
        """Puts a request in the queue. Raises RequestError if it could never run."""
        if request.prompt_len == 0:
            raise RequestError("the prompt is empty: at least one token is needed", "prompt")
        if request.prompt_len >= self.params.max_length:
            raise RequestError(
                f"the prompt has {request.prompt_len} tokens; at most {self.params.max_length - 1} fit "
                f"(max_model_len {self.params.max_model_len}, KV cache "
                f"{self.params.num_blocks * self.params.block_size} tokens)",
                "prompt",
            )
        request.seq = self._next_seq
        self._next_seq += 1
        request.queued_s = now_s
        self._by_id[request.id] = request
        view = self._views[request.seq] = View(request, self.rows, self.kv)
        self.accounts.arrived(view)
        self.ledger.arrived(request)
        self.waiting.push(request, self._key_of(self._step_view(now_s)))

    def abort(self, request: Request, now_s: float) -> None:
        """Ends a request wherever it stands and frees what it holds; does nothing if it has ended."""
        if request.state is not State.FINISHED:
            self._finish(request, FINISH_ABORT, now_s)

    @property
    def num_running(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    @property
    def has_work(self) -> bool:
        return bool(self.decoding or self.prefilling or len(self.waiting) or self._in_flight)

    def running_rows(self) -> np.ndarray:
        """int32: rows of running requests."""
        return np.array(self.decoding + self.prefilling, dtype=np.int32)

    def take_rejected(self) -> list[Request]:
        """Requests the policy refused since the last call; they have ended."""
        rejected, self._rejected = self._rejected, []
        return rejected

    # --- one step

    def schedule(self, now_s: float) -> StepPlan | None:
        """The next step's plan, or None if nothing can run now (nobody is here, or the policy defers all).

        Raises Stall if requests run but none can progress, which a sound state never gives.
        """
        self.guard.begin_step()
        view = self._step_view(now_s)
        budget = self._clamp(self.guard.step_budget(view))
        batch = Batch(budget.tokens, self._prefill_budget(budget))
        if budget.decode_first:
            self._schedule_decodes(view, batch)
            self._schedule_prefills(view, budget, batch)
        else:
            self._schedule_prefills(view, budget, batch)
            self._schedule_decodes(view, batch)
        if not batch.evicted:
            self._admit(view, budget, batch)
        if batch.empty:
            self._unblock(view, batch)
        if batch.empty:
            return None
        return self._plan(view, budget, batch)

    def update(self, result: StepResult, now_s: float) -> Update:
        """Takes a step's tokens in: appends them, ends who has ended, offers finished blocks for reuse."""
        flight = self._in_flight.popleft()
        plan = flight.plan
        rows, tokens = self._still_running(flight, result)
        known = self.rows.known[rows]
        self.rows.tokens[rows, known] = tokens
        known += 1
        self.rows.known[rows] = known
        self._offer_prompts(plan, flight.seqs)
        self.last = StepSample(
            prefill_tokens=plan.total_tokens - plan.num_decodes,
            decode_tokens=plan.num_decodes,
            context_tokens=int(plan.starts.sum()),
            duration_ms=result.duration_ms,
        )
        self.ledger.finished(plan.step, result.duration_ms)
        update = self._sort_news(rows, tokens, known, now_s)
        for row, why in result.failed.items():
            request = self.rows.requests[row]
            if request is not None:
                request.error = why
                self._finish(request, FINISH_ERROR, now_s)
                update.news.append(News(request, [], row, False))
        if self.guard.accounts:
            self.guard.on_events(self.accounts.take(now_s))
        return update

    # --- the parts of schedule()

    def _schedule_decodes(self, step: StepView, batch: Batch) -> None:
        """One token for each row that needs one; whoever lacks a block gets it from a victim."""
        rows = self._decodes.rows
        if batch.tokens_left < len(rows):
            rows = self._first_in_order(rows, step, batch.tokens_left)
        while len(rows):
            needy = rows[self.rows.computed[rows] == self.kv.tables.slots[rows]]
            if len(needy) <= self.kv.num_free:
                if len(needy):
                    self.kv.grow_each(needy)
                break
            self._evict_one(step, batch)
            rows = rows[self.rows.seq[rows] >= 0]
        batch.add_decodes(rows)

    def _schedule_prefills(self, step: StepView, budget: Budget, batch: Batch) -> None:
        """The next chunk of each prompt that has begun, in the order they began."""
        for row in tuple(self.prefilling):
            if self.rows.seq[row] < 0:
                continue
            room = self._chunk(int(self.rows.target[row] - self.rows.computed[row]), budget, batch)
            start = int(self.rows.computed[row])
            held = int(self.kv.tables.count[row]) * self.params.block_size
            room = min(room, held + self.kv.num_free * self.params.block_size - start)
            if room > 0:
                self.kv.grow(row, start + room)
                batch.add_prefill(row, room)

    def _admit(self, step: StepView, budget: Budget, batch: Batch) -> None:
        """New requests, in the policy's order, while there are slots, budget and blocks."""
        if not len(self.waiting):
            return
        if self.rows.num_free == 0:
            batch.block(Blocked.NO_SLOT, -1)
            return
        deferred = 0
        with closing(self._candidates(step)) as candidates:
            for request in candidates:
                verdict = self._verdict(request, step, batch)
                if verdict is Verdict.REJECT:
                    continue
                if verdict is Verdict.DEFER:
                    deferred += batch.blocked is Blocked.POLICY
                    if deferred == MAX_DEFERRALS:
                        return
                    continue
                blocked = self._start(request, step, budget, batch)
                if blocked is not Blocked.NONE:
                    batch.block(blocked, request.seq)
                    return
                if self.rows.num_free == 0:
                    batch.block(Blocked.NO_SLOT, -1)
                    return

    def _verdict(self, request: Request, step: StepView, batch: Batch) -> Verdict:
        if self._sibling_busy(request):
            batch.block(Blocked.SIBLING, request.seq)
            return Verdict.DEFER
        admission = self.guard.admit(self._views[request.seq], step)
        if admission.verdict is Verdict.REJECT:
            request.error = admission.reason or f"refused by the policy {self.guard.name}"
            self._finish(request, FINISH_REJECTED, step.now_s)
            self._rejected.append(request)
        elif admission.verdict is Verdict.DEFER:
            if step.now_s - request.queued_s > self.params.max_wait_s:
                self.guard.overrule("admit")
                return Verdict.ADMIT
            batch.block(Blocked.POLICY, request.seq)
        return admission.verdict

    def _start(self, request: Request, step: StepView, budget: Budget, batch: Batch) -> Blocked:
        """Gives a request a row, its cached prefix and its first chunk; or says what is missing."""
        match = self._match(request)
        remaining = request.length - match.tokens
        room = self._chunk(remaining, budget, batch)
        if room <= 0:
            return Blocked.NO_BUDGET
        wanted = request.length if self.params.reserve_full_prompt else match.tokens + room
        spare = self.kv.num_free - self._promised_blocks()
        if self.num_running:
            spare -= int(self.params.watermark * self.params.num_blocks)
        if self.kv.cost(match, wanted) > spare:
            return Blocked.NO_BLOCKS
        limit = min(request.max_length, self.params.max_length)
        row = self.rows.begin(request, match.tokens, limit, self.accounts.tenant(request.tenant))
        self.kv.begin(row, match)
        self.kv.grow(row, match.tokens + room)
        if request.state is State.WAITING:
            request.cached_tokens = match.tokens
            request.first_scheduled_s = step.now_s
        self.kv.prefix.queries += request.length
        self.kv.prefix.hits += match.tokens
        self.waiting.remove(request)
        request.to(State.RUNNING)
        request.row = row
        self.prefilling.append(row)
        batch.add_new(row, request, room)
        return Blocked.NONE

    def _plan(self, step: StepView, budget: Budget, batch: Batch) -> StepPlan:
        columns = self.rows
        if batch.decodes_only and batch.decodes is self._decodes.rows:
            rows, ones = batch.decodes, self._decodes
            num_tokens, samples, seqs = ones.tokens, ones.samples, ones.seqs
            starts = columns.computed[rows]
            columns.computed[rows] = starts + 1
            columns.target[rows] = starts + 2
        else:
            rows, num_tokens = batch.arrays()
            starts = columns.computed[rows]
            columns.computed[rows] += num_tokens
            samples = columns.computed[rows] == columns.target[rows]
            columns.target[rows[samples]] += 1
            seqs = columns.seq[rows]
        changes = self.kv.take_changes()
        plan = StepPlan(
            self.step,
            rows,
            starts,
            num_tokens,
            samples,
            batch.num_decodes,
            added=batch.new_rows(self.rows),
            removed=np.array(self._removed, dtype=np.int32),
            table_rows=changes.rows,
            table_indices=changes.indices,
            table_blocks=changes.blocks,
            copies=changes.copies,
            padding=self._padding(budget, batch, num_tokens),
        )
        self._removed = []
        self._in_flight.append(_InFlight(plan, seqs, columns.turnover))
        if not batch.decodes_only:
            self._promote(rows[batch.num_decodes :], samples[batch.num_decodes :])
        if self.guard.accounts:
            self.accounts.ran(columns, rows, num_tokens, samples, starts)
        self.ledger.record(
            StepRecord(
                self.step,
                step.now_s,
                seqs,
                starts,
                num_tokens,
                batch.num_decodes,
                tuple(batch.admitted),
                tuple(batch.evicted),
                batch.blocked,
                batch.blocked_seq,
                len(self.waiting),
            )
        )
        self.step += 1
        return plan

    def _unblock(self, step: StepView, batch: Batch) -> None:
        """Nobody was given a token. If the policy spent its budget on nobody, it is overruled; if prompts
        hold each other's blocks, victims give way until one can go on. Deferred requests may wait on.
        """
        budget = Budget(tokens=self.params.max_num_batched_tokens)
        if not self.num_running and batch.blocked is Blocked.NO_BUDGET:
            batch.reset(budget.tokens, budget.tokens)
            self._admit(step, budget, batch)
        while batch.empty and self.num_running:
            batch.reset(budget.tokens, budget.tokens)
            self._schedule_decodes(step, batch)
            self._schedule_prefills(step, budget, batch)
            if not batch.empty:
                break
            if self.num_running == 1:
                raise Stall(
                    f"step {self.step}: 1 running, {len(self.waiting)} waiting, {self.kv.num_free} of "
                    f"{self.params.num_blocks} blocks free, and nothing can progress"
                )
            self._evict_one(step, batch)
        if not batch.empty and not batch.evicted:
            self.guard.overrule("step_budget")

    # --- victims

    def _evict_one(self, step: StepView, batch: Batch) -> None:
        """The policy's victim gives its blocks back and waits again; it keeps its place in arrival order."""
        running = [self.rows.request(row) for row in self.decoding + self.prefilling]
        spared = [request for request in running if request.preemptions < MAX_EVICTIONS]
        candidates = spared or running
        victim = min(
            candidates,
            key=lambda request: (self.guard.victim_key(self._views[request.seq], step), -request.seq),
        )
        row = victim.row
        self.kv.commit(row, victim, self._finished_tokens(row))
        batch.drop(row)
        self._leave_row(victim)
        victim.to(State.EVICTED)
        victim.preemptions += 1
        victim.queued_s = step.now_s
        self.preemptions += 1
        batch.evicted.append(victim.seq)
        self.accounts.preempted(self._views[victim.seq])
        self.waiting.push(victim, self._key_of(step))

    def _finished_tokens(self, row: int) -> np.ndarray:
        """int32: the tokens of a row that are known and in the cache."""
        return self.rows.tokens[row, : min(self.rows.computed[row], self.rows.known[row])]

    def _leave_row(self, request: Request) -> None:
        row = request.row
        if row in self.prefilling:
            self.prefilling.remove(row)
        else:
            self.decoding.remove(row)
            self._decode_arrays = None
        self.kv.end(row)
        self.rows.end(row)
        self._removed.append(row)
        request.row = -1
        if not self.num_running:
            self._batch_width = 0

    # --- the parts of update()

    def _still_running(self, flight: _InFlight, result: StepResult) -> tuple[np.ndarray, np.ndarray]:
        """Rows and tokens of the result, without the rows that changed hands since the plan was made."""
        if self.rows.turnover == flight.turnover:
            return result.rows, result.tokens
        same = self.rows.seq[result.rows] == flight.seqs[flight.plan.samples]
        return result.rows[same], result.tokens[same]

    def _offer_prompts(self, plan: StepPlan, seqs: np.ndarray) -> None:
        """Blocks of prompt chunks just computed can serve other requests from now on."""
        for place in range(plan.num_decodes, len(plan.rows)):
            row = int(plan.rows[place])
            if self.rows.seq[row] != seqs[place]:
                continue
            start = int(plan.starts[place])
            done = min(start + int(plan.num_tokens[place]), int(self.rows.known[row]))
            self.kv.commit(row, self.rows.request(row), self.rows.tokens[row, :done], start)

    def _sort_news(self, rows: np.ndarray, tokens: np.ndarray, known: np.ndarray, now_s: float) -> Update:
        """Splits rows into those with just a token and those with more to say; ends the ended.

        known: int32, aligned with rows, tokens each has now.
        """
        columns = self.rows
        ended = known >= columns.limit[rows]
        for eos in self.params.eos_token_ids:
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
        params = request.params
        if token in params.stop_token_ids or (token in self.params.eos_token_ids and not params.ignore_eos):
            return FINISH_STOP
        return FINISH_LENGTH if self.rows.known[row] >= self.rows.limit[row] else None

    def _finish(self, request: Request, reason: str, now_s: float) -> None:
        if request.state is State.RUNNING:
            self.kv.commit(request.row, request, self._finished_tokens(request.row))
            self._leave_row(request)
        else:
            self.waiting.remove(request)
        request.to(State.FINISHED)
        request.finish_reason = reason
        request.finished_s = now_s
        self.accounts.finished(self._views.pop(request.seq))
        if self._by_id.get(request.id) is request:
            del self._by_id[request.id]

    # --- small questions

    def _step_view(self, now_s: float) -> StepView:
        decodes = self._decodes.rows
        oldest = self.waiting.oldest()
        params = self.params
        return StepView(
            self.step,
            now_s,
            self.kv.num_free,
            params.num_blocks,
            params.block_size,
            params.max_num_seqs,
            params.max_num_batched_tokens,
            self.num_running,
            len(decodes),
            len(self.waiting),
            int(self.rows.computed[decodes].sum()),
            now_s - oldest.queued_s if oldest is not None else 0.0,
            self.last,
        )

    @property
    def _decodes(self) -> _Decodes:
        if self._decode_arrays is None:
            self._decode_arrays = _Decodes.of(self.decoding, self.rows)
        return self._decode_arrays

    def _promote(self, rows: np.ndarray, samples: np.ndarray) -> None:
        """Rows whose prompt is complete decode from the next step on."""
        done = rows[samples].tolist()
        for row in done:
            self.prefilling.remove(row)
        if done:
            self.decoding.extend(done)
            self._decode_arrays = None

    def _key_of(self, step: StepView):
        return lambda request: self.guard.order_key(self._views[request.seq], step)

    def _candidates(self, step: StepView):
        """Waiting requests in order; whoever waited longer than max_wait_s goes first."""
        oldest = self.waiting.oldest()
        overdue = oldest is not None and step.now_s - oldest.queued_s > self.params.max_wait_s
        if overdue and oldest is not None:
            yield oldest
        with closing(self.waiting.candidates(self._key_of(step))) as candidates:
            for request in candidates:
                if not (overdue and request is oldest):
                    yield request

    def _first_in_order(self, rows: np.ndarray, step: StepView, count: int) -> np.ndarray:
        """The `count` rows the policy puts first."""
        key_of = self._key_of(step)
        ordered = sorted(rows.tolist(), key=lambda row: (key_of(self.rows.request(row)), self.rows.seq[row]))
        return np.array(ordered[:count], dtype=np.int32)

    def _sibling_busy(self, request: Request) -> bool:
        """The first sequence of the same prompt has not computed it yet."""
        first = self._by_id.get(request.fork_of) if request.fork_of else None
        if first is None or request.state is not State.WAITING:
            return False
        return first.state is not State.RUNNING or self.rows.known[first.row] <= first.prompt_len

    def _match(self, request: Request) -> Match:
        first = self._by_id.get(request.fork_of) if request.fork_of else None
        if first is not None and first.state is State.RUNNING and request.state is State.WAITING:
            return self.kv.fork(first.row, request.prompt_len - 1)
        if request.params.prompt_logprobs is not None and not request.output:
            return Match([], 0)  # every position's logits are wanted
        return self.kv.match(request, request.tokens())

    def _promised_blocks(self) -> int:
        """Blocks that prompts which have begun will still need."""
        rows = self.prefilling
        if not rows or not self.params.reserve_full_prompt:
            return 0
        return sum(
            max(0, self.kv.blocks_for(int(self.rows.target[row])) - int(self.kv.tables.count[row]))
            for row in rows
        )

    def _chunk(self, remaining: int, budget: Budget, batch: Batch) -> int:
        """Tokens of a prompt with `remaining` left that this step may compute."""
        room = batch.prefill_left
        if not budget.chunked:
            return remaining if remaining <= room else 0
        room = min(room, batch.tokens_left)
        cap = budget.chunk_tokens if budget.chunk_tokens is not None else room
        if self.params.long_prefill_token_threshold:
            cap = min(cap, self.params.long_prefill_token_threshold)
        return min(remaining, room, cap)

    def _clamp(self, budget: Budget) -> Budget:
        """The policy's budget within the configured limits."""
        chunked = budget.chunked
        if self.params.enable_chunked_prefill is not None:
            chunked = self.params.enable_chunked_prefill
        tokens = min(budget.tokens, self.params.max_num_batched_tokens)
        if tokens == budget.tokens and chunked == budget.chunked:
            return budget
        return Budget(
            tokens=tokens,
            prefill_tokens=budget.prefill_tokens,
            chunk_tokens=budget.chunk_tokens,
            chunked=chunked,
            decode_first=budget.decode_first,
            pad=budget.pad,
            target_ms=budget.target_ms,
        )

    def _prefill_budget(self, budget: Budget) -> int:
        """Prompt tokens of a step. Whole prompts do not share it with decodes, or one as long as the
        budget would wait for ever.
        """
        return budget.tokens if budget.prefill_tokens is None else min(budget.prefill_tokens, budget.tokens)

    def _padding(self, budget: Budget, batch: Batch, num_tokens: np.ndarray) -> int:
        """Tokens that padding the batch to its widest member would add, ended members included."""
        if not budget.pad:
            return 0
        self._batch_width = max(self._batch_width, self.num_running)
        return self._batch_width * int(num_tokens.max()) - int(num_tokens.sum())

    def check_integrity(self) -> None:
        """Raises IntegrityError naming the first broken invariant of rows, tables and blocks."""
        self.kv.check_integrity(self.running_rows(), self.rows.computed)


@dataclass(slots=True)
class _InFlight:
    """A launched step. seqs are the arrival numbers of its rows, to recognise rows that changed hands."""

    plan: StepPlan
    seqs: np.ndarray
    turnover: int


@dataclass(slots=True)
class _Decodes:
    """The decoding rows as arrays, with what every step over just these rows has in common."""

    rows: np.ndarray  # int32 [n]
    seqs: np.ndarray  # int64 [n]
    tokens: np.ndarray  # int32 [n], one each
    samples: np.ndarray  # bool [n], all of them

    @classmethod
    def of(cls, rows: list[int], columns: Rows) -> _Decodes:
        array = np.array(rows, dtype=np.int32)
        count = len(rows)
        return cls(array, columns.seq[array], np.ones(count, np.int32), np.ones(count, bool))

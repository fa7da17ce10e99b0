"""The scheduler: one `schedule()`, one `update()`.

There is no prefill phase and no decode phase. Each request has tokens computed and tokens to reach; a step
hands out tokens until a budget is spent. Chunked prefill, prefix caching and the return from an eviction all
fall out of that. The policy advises (through the guard); what must be right is decided here.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing

import numpy as np

from ...policies.base import Budget, Policy, StepSample, StepView, Verdict
from ..errors import RequestError, Stall
from ..request import FINISH_ABORT, FINISH_REJECTED, Request, State
from .accounting import Accounts
from .batch import Batch, clamp
from .departures import Departures
from .guard import Guard
from .ledger import Blocked, Ledger, StepRecord
from .outcome import InFlight, Outcome, Update
from .params import SchedulerParams
from .plan import StepPlan, StepResult
from .running import Running
from .siblings import Siblings
from .views import View, Views
from .waiting import WaitingQueue

MAX_DEFERRALS = 32  # deferred candidates looked past in one step


class Scheduler:
    """Decides, step by step, which tokens of which requests are computed.

    Deterministic: the same calls with the same clock values give the same plans.
    """

    def __init__(self, params: SchedulerParams, policy: Policy, ledger: Ledger | None = None) -> None:
        self.params = params
        self.guard = Guard(policy)
        self.ledger = ledger or Ledger()
        self.running = Running(params)
        self.rows, self.kv = self.running.rows, self.running.kv
        self.siblings = Siblings(self.running)
        self.waiting = WaitingQueue(dynamic=self.guard.dynamic, window=params.window)
        self.accounts = Accounts(enabled=self.guard.accounts)
        self.views = Views(self.guard)
        self.departures = Departures(
            self.guard, self.views, self.running, self.waiting, self.siblings, self.accounts
        )
        self.in_flight: deque[InFlight] = deque()
        self.step = 0
        self.last: StepSample | None = None
        self.token_limit: int | None = None  # of a step, while the device is short of memory
        self._outcome = Outcome(self.running, self.departures.finish)
        self._rejected: list[Request] = []
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
        self.siblings.add(request)
        request.seq = self._next_seq
        self._next_seq += 1
        request.queued_s = now_s
        view = View(request, self.rows, self.kv)
        self.views.add(view)
        self.accounts.arrived(view)
        self.ledger.arrived(request)
        self.waiting.push(request, self.views.key_of(self.step_view(now_s)))

    def abort(self, request: Request, now_s: float) -> None:
        """Ends a request wherever it stands and frees what it holds; does nothing if it has ended."""
        if request.state is not State.FINISHED:
            self.departures.finish(request, FINISH_ABORT, now_s)

    @property
    def oldest_plan(self) -> StepPlan:
        """That of the step in flight whose result comes next."""
        return self.in_flight[0].plan

    def owner(self, row: int) -> Request | None:
        """The request that held the row when the oldest step in flight was planned; None if it has ended since."""
        flight = self.in_flight[0]
        return self.views.request(int(flight.seqs[flight.plan.rows == row][0]))

    @property
    def preemptions(self) -> int:
        """Evictions since start."""
        return self.departures.preemptions

    @property
    def has_work(self) -> bool:
        return bool(len(self.running) or len(self.waiting) or self.in_flight)

    def take_rejected(self) -> list[Request]:
        """Requests the policy refused since the last call; they have ended."""
        rejected, self._rejected = self._rejected, []
        return rejected

    # --- one step

    def schedule(self, now_s: float) -> StepPlan | None:
        """The next step's plan, or None if nothing can run now (nobody is here, or the policy defers all).
        Steps may be in flight: what they will compute and draw counts as done.

        Raises Stall if requests run but none can progress, which a sound state never gives.
        """
        self.guard.begin_step()
        view = self.step_view(now_s)
        batch = Batch(clamp(self.guard.step_budget(view), self.params, self.token_limit))
        if batch.budget.decode_first:
            self._schedule_decodes(view, batch)
            self._schedule_prefills(batch)
        else:
            self._schedule_prefills(batch)
            self._schedule_decodes(view, batch)
        if not batch.evicted:
            self._admit(view, batch)
        if batch.empty and not self.in_flight:
            self._unblock(view, batch)
        if batch.empty:
            if len(self.waiting) and not self.in_flight:
                held = StepRecord(
                    self.step, now_s, len(self.waiting), batch.blocked, batch.blocked_seq, idle=True
                )
                self.ledger.record(held)
            return None
        return self._plan(view, batch)

    def update(self, result: StepResult, now_s: float) -> Update:
        """Takes a step's tokens in: appends them, ends who has ended, offers finished blocks for reuse."""
        flight = self.in_flight.popleft()
        plan = flight.plan
        self.last = StepSample(
            flight.total_tokens - plan.num_decodes,
            plan.num_decodes,
            flight.context_tokens,
            result.duration_ms,
        )
        self.ledger.finished(plan.step, result.duration_ms)
        update = self._outcome.take(flight, result, now_s)
        if self.guard.accounts:
            self.guard.on_events(self.accounts.take(now_s))
        return update

    # --- the parts of schedule()

    def _schedule_decodes(self, step: StepView, batch: Batch) -> None:
        """One token for each row that needs one; whoever lacks a block gets it from a victim."""
        decodes = self.running.decodes
        rows = decodes.rows
        if self.in_flight:  # a row whose last token is being drawn needs no further step
            ending = decodes.starts + 1 >= self.rows.limit[rows]
            rows = rows[~ending] if ending.any() else rows
        if batch.tokens_left < len(rows):
            rows = self._first_in_order(rows, step, batch.tokens_left)
        while len(rows):
            starts = decodes.starts if rows is decodes.rows else self.rows.computed[rows]
            needy = rows[starts == self.kv.tables.slots[rows]]
            if len(needy) <= self.kv.num_free:
                if len(needy):
                    self.kv.grow_each(needy)
                break
            self._evict_one(step, batch)
            rows = rows[self.rows.seq[rows] >= 0]
        batch.add_decodes(rows)

    def _schedule_prefills(self, batch: Batch) -> None:
        """The next chunk of each prompt that has begun, in the order they began."""
        for row in tuple(self.running.prefilling):
            if self.rows.seq[row] < 0:
                continue
            start = int(self.rows.computed[row])
            room = batch.chunk(int(self.rows.target[row]) - start)
            held = int(self.kv.tables.count[row]) * self.params.block_size
            room = min(room, held + self.kv.num_free * self.params.block_size - start)
            if room > 0:
                self.kv.grow(row, start + room)
                batch.add_prefill(row, room)

    def _admit(self, step: StepView, batch: Batch) -> None:
        """New requests, in the policy's order, while there are slots, budget and blocks."""
        if not len(self.waiting):
            return
        if self.rows.num_free == 0:
            batch.block(Blocked.NO_SLOT, -1)
            return
        deferred = 0
        overdue_s = step.now_s - self.params.max_wait_s
        with closing(self.waiting.candidates(self.views.key_of(step), overdue_s)) as candidates:
            for request in candidates:
                verdict = self._verdict(request, step, batch)
                if verdict is Verdict.REJECT:
                    continue
                if verdict is Verdict.DEFER:
                    deferred += batch.blocked is Blocked.POLICY
                    if deferred == MAX_DEFERRALS:
                        return
                    continue
                blocked = self._start(request, step, batch)
                if blocked is not Blocked.NONE:
                    batch.block(blocked, request.seq)
                    return
                if self.rows.num_free == 0:
                    batch.block(Blocked.NO_SLOT, -1)
                    return

    def _verdict(self, request: Request, step: StepView, batch: Batch) -> Verdict:
        if self.siblings.must_wait(request):
            batch.block(Blocked.SIBLING, request.seq)
            return Verdict.DEFER
        admission = self.guard.admit(self.views[request], step)
        if admission.verdict is Verdict.REJECT:
            request.error = admission.reason or f"refused by the policy {self.guard.name}"
            self.departures.finish(request, FINISH_REJECTED, step.now_s)
            self._rejected.append(request)
        elif admission.verdict is Verdict.DEFER:
            if step.now_s - request.queued_s > self.params.max_wait_s:
                self.guard.overrule("admit")
                return Verdict.ADMIT
            batch.block(Blocked.POLICY, request.seq)
        return admission.verdict

    def _start(self, request: Request, step: StepView, batch: Batch) -> Blocked:
        """Gives a request a row, its cached prefix and its first chunk; or says what is missing."""
        match = self.siblings.match(request)
        room = batch.chunk(request.length - match.tokens)
        if room <= 0:
            return Blocked.NO_BUDGET
        wanted = request.length if self.params.reserve_full_prompt else match.tokens + room
        spare = self.kv.num_free - self.running.promised_blocks()
        if len(self.running):
            spare -= int(self.params.watermark * self.params.num_blocks)
        if self.kv.cost(match, wanted) > spare:
            return Blocked.NO_BLOCKS
        if request.state is State.WAITING:
            request.cached_tokens = match.tokens
            request.first_scheduled_s = step.now_s
        self.waiting.remove(request)
        tenant = self.accounts.tenant(request.tenant)
        row = self.running.begin(request, match, match.tokens + room, tenant)
        batch.add_new(row, request, room)
        return Blocked.NONE

    def _plan(self, step: StepView, batch: Batch) -> StepPlan:
        columns = self.rows
        decodes, num_decodes = self.running.decodes, len(batch.decodes)
        if batch.decodes_only and batch.decodes is decodes.rows:
            rows, plan_rows, seqs = decodes.rows, decodes.plan_rows, decodes.seqs
            num_tokens, samples, sampled = decodes.tokens, decodes.samples, rows
            starts, context_tokens, total_tokens = decodes.starts, decodes.context_tokens, len(rows)
            reached = self.running.advance_decodes()
        else:
            rows, num_tokens = batch.arrays()
            plan_rows, starts, seqs = rows.astype(np.int32), columns.computed[rows], columns.seq[rows]
            context_tokens, total_tokens = int(starts.sum()), int(num_tokens.sum())
            samples = self.running.advance(rows, num_tokens)
            sampled = rows[samples]
            reached = columns.computed[sampled]
        changes = self.kv.tables.take_changes()
        plan = StepPlan(
            self.step,
            plan_rows,
            starts,
            num_tokens,
            samples,
            num_decodes,
            added=batch.new_rows(self.rows),
            removed=self.running.take_removed(),
            table_rows=changes.rows,
            table_indices=changes.indices,
            table_blocks=changes.blocks,
            copies=changes.copies,
            padding=self._padding(step, batch.budget, num_tokens),
        )
        self.in_flight.append(
            InFlight(plan, seqs, sampled, reached, columns.turnover, context_tokens, total_tokens)
        )
        if not batch.decodes_only:
            self.running.promote(rows[num_decodes:][samples[num_decodes:]])
        if self.guard.accounts:
            self.accounts.ran(columns, rows, num_tokens, samples, starts)
        self._record(step, plan, seqs, batch)
        self.step += 1
        return plan

    def _record(self, step: StepView, plan: StepPlan, seqs: np.ndarray, batch: Batch) -> None:
        self.ledger.record(
            StepRecord(
                step=plan.step,
                start_s=step.now_s,
                seqs=seqs,
                starts=plan.starts,
                num_tokens=plan.num_tokens,
                num_decodes=plan.num_decodes,
                admitted=tuple(batch.admitted),
                evicted=tuple(batch.evicted),
                blocked=batch.blocked,
                blocked_seq=batch.blocked_seq,
                waiting=len(self.waiting),
                budget=batch.budget,
            )
        )

    def _unblock(self, step: StepView, batch: Batch) -> None:
        """Nobody was given a token. If the policy spent its budget on nobody, it is overruled; if prompts
        hold each other's blocks, victims give way until one can go on. Deferred requests may wait on.
        """
        budget = clamp(Budget(self.params.max_num_batched_tokens), self.params, self.token_limit)
        if len(self.waiting) and not len(self.running):
            batch.reset(budget)
            self._admit(self.step_view(step.now_s), batch)
        while batch.empty and len(self.running):
            batch.reset(budget)
            self._schedule_decodes(step, batch)
            self._schedule_prefills(batch)
            if not batch.empty:
                break
            if len(self.running) == 1:
                raise Stall(
                    f"step {self.step}: 1 running, {len(self.waiting)} waiting, {self.kv.num_free} of "
                    f"{self.params.num_blocks} blocks free, and nothing can progress"
                )
            self._evict_one(step, batch)
        if not batch.empty and not batch.evicted:
            self.guard.overrule("step_budget")

    # --- victims

    def _evict_one(self, step: StepView, batch: Batch) -> None:
        """The policy's victim gives its blocks back and waits again."""
        victim = self.departures.victim(step)
        batch.drop(victim.row)
        batch.evicted.append(victim.seq)
        self.departures.evict(victim, step)

    # --- small questions

    def step_view(self, now_s: float) -> StepView:
        """What policies see of this moment."""
        decodes = self.running.decodes
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
            len(self.running),
            len(decodes.rows),
            len(self.waiting),
            decodes.context_tokens,
            now_s - oldest.queued_s if oldest is not None else 0.0,
            self.last,
        )

    def _first_in_order(self, rows: np.ndarray, step: StepView, count: int) -> np.ndarray:
        """The `count` rows the policy puts first."""
        key_of = self.views.key_of(step)
        ordered = sorted(rows.tolist(), key=lambda row: (key_of(self.rows.request(row)), self.rows.seq[row]))
        return np.array(ordered[:count], dtype=np.intp)

    def _padding(self, step: StepView, budget: Budget, num_tokens: np.ndarray) -> int:
        """Tokens that padding the batch to its widest member would add, ended members included."""
        if not budget.pad:
            return 0
        before = self._batch_width if step.num_running else 0
        self._batch_width = max(before, len(self.running))
        return self._batch_width * int(num_tokens.max()) - int(num_tokens.sum())

    def check_integrity(self) -> None:
        """Raises IntegrityError naming the first broken invariant of rows, tables and blocks."""
        self.running.check_integrity()

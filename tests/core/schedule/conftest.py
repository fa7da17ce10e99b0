"""A scheduler with a device made of plain lists, which notices any token that lands or is read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from camshaft.core.request import Request, SamplingParams
from camshaft.core.schedule.outcome import Update
from camshaft.core.schedule.params import SchedulerParams
from camshaft.core.schedule.plan import StepPlan, StepResult
from camshaft.core.schedule.scheduler import Scheduler
from camshaft.policies.base import Policy
from camshaft.policies.registry import load_policy

EOS = 1


class ListDevice:
    """Holds a token id in every cache slot and checks what each row reads against what it should be."""

    def __init__(self, num_blocks: int, block_size: int, rows: int, max_tokens: int) -> None:
        self.block_size = block_size
        self.slots = [[-1] * block_size for _ in range(num_blocks)]
        self.tables = np.full((rows, -(-max_tokens // block_size)), -1)
        self.tokens: dict[int, list[int]] = {}

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.removed.tolist():
            self.tokens.pop(row, None)
        for new in plan.added:
            assert new.row not in self.tokens, "a row began twice"
            self.tokens[new.row] = new.tokens.tolist()
        self.tables[plan.table_rows, plan.table_indices] = plan.table_blocks
        read_first = [list(self.slots[source]) for source, _ in plan.copies.tolist()]
        for (_, target), held in zip(plan.copies.tolist(), read_first, strict=True):
            self.slots[target] = held
        lines = list(zip(plan.rows.tolist(), plan.starts.tolist(), plan.num_tokens.tolist(), strict=True))
        assert len({row for row, _, _ in lines}) == len(lines), "a row twice in a step"
        for row, start, count in lines:
            for position in range(start, start + count):
                block = self.tables[row, position // self.block_size]
                self.slots[block][position % self.block_size] = self.tokens[row][position]
        for row, start, count in lines:
            read = [
                self.slots[self.tables[row, p // self.block_size]][p % self.block_size]
                for p in range(start + count)
            ]
            assert read == self.tokens[row][: start + count], f"row {row} reads what is not its own"
        drawn = [self._draw(row) for row in plan.rows[plan.samples].tolist()]
        return StepResult(plan.step, plan.rows[plan.samples], np.array(drawn, dtype=np.int32), 1.0)

    def _draw(self, row: int) -> int:
        """The next token is a function of the sequence, so a recomputed one must come out the same."""
        token = 2 + (sum(self.tokens[row]) * 31 + len(self.tokens[row])) % 97
        self.tokens[row].append(token)
        return token


class Harness:
    def __init__(self, policy: Policy | str | dict[str, Any] = "continuous-chunked", **params: Any) -> None:
        defaults: dict[str, Any] = {
            "num_blocks": 64,
            "block_size": 4,
            "max_model_len": 200,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            "eos_token_ids": (EOS,),
        }
        self.params = SchedulerParams(**{**defaults, **params})
        made = policy if not isinstance(policy, str | dict) else load_policy(policy).build()
        self.scheduler = Scheduler(self.params, made)
        self.device = ListDevice(
            self.params.num_blocks, self.params.block_size, self.params.max_num_seqs, self.params.max_length
        )
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self.made = 0

    def add(self, prompt: int | list[int], max_tokens: int = 4, **fields: Any) -> Request:
        """A request with that prompt; a number stands for so many tokens of its own."""
        self.made += 1
        tokens = [100 + self.made] * prompt if isinstance(prompt, int) else prompt
        request = Request(
            id=fields.pop("id", f"r{self.made}"),
            prompt=np.array(tokens, dtype=np.int32),
            params=fields.pop("params", SamplingParams(max_tokens=max_tokens)),
            arrival_s=self.now,
            handle=self.made,
            **fields,
        )
        self.scheduler.add(request, self.now)
        return request

    def step(self) -> tuple[StepPlan | None, Update | None]:
        self.now += 0.01
        plan = self.scheduler.schedule(self.now)
        if plan is None:
            return None, None
        self.plans.append(plan)
        result = self.device.run(plan)
        self.now += 0.01
        return plan, self.scheduler.update(result, self.now)

    def drain(self, limit: int = 5000) -> None:
        """Steps until nobody is left."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                return
            plan, _ = self.step()
            if plan is None:
                self.now += 1.0
        raise AssertionError(f"not done after {limit} steps")


@pytest.fixture
def harness() -> Callable[..., Harness]:
    return Harness

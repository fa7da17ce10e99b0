"""A device that hands tokens back a step late, and that can run out of memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from camshaft.core.errors import OutOfMemory
from camshaft.core.execute.base import Capacity
from camshaft.core.schedule.plan import StepPlan, StepResult

EOS = 1


def never(_: StepPlan) -> bool:
    return False


class AsyncDevice:
    """Keeps tokens by row as a device would: a launched step reads what the one before drew, long before
    the host sees it. Cache slots hold token ids, so any write or read that is not a row's own is noticed.

    `full` and `lost` say which plans run out of memory in launch and in collect.
    """

    def __init__(
        self, full: Callable[[StepPlan], bool] = never, lost: Callable[[StepPlan], bool] = never
    ) -> None:
        self.full, self.lost = full, lost
        self.plans: dict[int, StepPlan] = {}
        self.unapplied: list[StepPlan] = []
        self.relieved = 0
        self.capacity = Capacity(
            num_blocks=26,
            block_size=4,
            max_model_len=90,
            max_num_seqs=5,
            vocab_size=999,
            eos_token_ids=(EOS,),
        )
        self.slots = np.full((26, 4), -1)
        self.tables = np.full((5, 23), -1)
        self.tokens: dict[int, list[int]] = {}
        self.in_flight = 0
        self.deepest = 0

    def open(self) -> Capacity:
        return self.capacity

    def launch(self, plan: StepPlan) -> StepResult:
        if self.full(plan):
            self.unapplied.append(plan)
            raise OutOfMemory("the fake device is full")
        self.plans[plan.step] = plan
        self.in_flight += 1
        self.deepest = max(self.deepest, self.in_flight)
        for changed in (*self.unapplied, plan):
            self.change(changed)
        self.unapplied.clear()
        return self.run(plan)

    def change(self, plan: StepPlan) -> None:
        for row in plan.removed.tolist():
            self.tokens.pop(row, None)
        for new in plan.added:
            self.tokens[new.row] = new.tokens.tolist()
        self.tables[plan.table_rows, plan.table_indices] = plan.table_blocks
        for source, target in plan.copies.tolist():
            self.slots[target] = self.slots[source]

    def run(self, plan: StepPlan) -> StepResult:
        drawn = []
        for row, start, count in zip(
            plan.rows.tolist(), plan.starts.tolist(), plan.num_tokens.tolist(), strict=True
        ):
            for place in range(start, start + count):
                self.slots[self.tables[row, place // 4], place % 4] = self.tokens[row][place]
        for row, start, count, samples in zip(
            plan.rows.tolist(),
            plan.starts.tolist(),
            plan.num_tokens.tolist(),
            plan.samples.tolist(),
            strict=True,
        ):
            read = [int(self.slots[self.tables[row, p // 4], p % 4]) for p in range(start + count)]
            assert read == self.tokens[row][: start + count]
            if samples:
                drawn.append(EOS if sum(read) % 17 == 0 else 2 + sum(read) % 91)
                self.tokens[row].append(drawn[-1])
        return StepResult(plan.step, plan.rows[plan.samples], np.array(drawn, dtype=np.int32), 1.0)

    def collect(self, handle: StepResult) -> StepResult:
        self.in_flight -= 1
        plan = self.plans.pop(handle.step)
        if not self.lost(plan):
            return handle
        self.in_flight = 0
        self.plans.clear()
        self.slots[:] = -1  # nothing that was there may be relied on
        raise OutOfMemory("the fake device lost a step")

    def relieve(self) -> None:
        self.relieved += 1

    def close(self) -> None:
        pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

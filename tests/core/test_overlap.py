"""The overlapped loop against the plain one, over a device that hands tokens back a step late."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from camshaft.core.config import ServeConfig
from camshaft.core.engine import Engine
from camshaft.core.execute.base import Capacity
from camshaft.core.request import Request, SamplingParams
from camshaft.core.schedule.plan import StepPlan, StepResult
from camshaft.policies.registry import load_policy

EOS = 1


class AsyncDevice:
    """Keeps tokens by row as a device would: a launched step reads what the one before drew, long before
    the host sees it. Cache slots hold token ids, so any write or read that is not a row's own is noticed.
    """

    def __init__(self, overlap: bool) -> None:
        self.capacity = Capacity(
            num_blocks=26,
            block_size=4,
            max_model_len=90,
            max_num_seqs=5,
            vocab_size=999,
            eos_token_ids=(EOS,),
        )
        self.overlap = overlap
        self.slots = np.full((26, 4), -1)
        self.tables = np.full((5, 23), -1)
        self.tokens: dict[int, list[int]] = {}
        self.in_flight = 0
        self.deepest = 0

    def open(self) -> Capacity:
        return self.capacity

    def launch(self, plan: StepPlan) -> StepResult:
        self.in_flight += 1
        self.deepest = max(self.deepest, self.in_flight)
        for row in plan.removed.tolist():
            self.tokens.pop(row, None)
        for new in plan.added:
            self.tokens[new.row] = new.tokens.tolist()
        self.tables[plan.table_rows, plan.table_indices] = plan.table_blocks
        for source, target in plan.copies.tolist():
            self.slots[target] = self.slots[source]
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
        return handle

    def close(self) -> None:
        pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def serve(overlap: bool, policy: Any, seed: int) -> tuple[dict[int, list[int]], AsyncDevice, Engine]:
    rng = random.Random(seed)
    config = ServeConfig(
        model="m",
        max_num_batched_tokens=90,
        enable_prefix_caching=True,
        long_prefill_token_threshold=0,
        async_scheduling=overlap,
    )
    device = AsyncDevice(overlap)
    engine = Engine(config, device, load_policy(policy), clock=Clock())
    engine.open()
    texts: dict[int, list[int]] = {}

    def step() -> None:
        for output in engine.step():
            texts.setdefault(output.handle, []).extend(output.tokens)
        engine.check_integrity()

    prompt: list[int] = []
    for handle in range(50):
        fork = f"r{handle - 1}" if rng.random() < 0.2 and handle else None
        if fork is None:
            prompt = [*range(200, 200 + rng.randint(0, 20)), *[300 + handle] * rng.randint(1, 20)]
        params = SamplingParams(max_tokens=rng.randint(1, 25))
        engine.add(
            Request(f"r{handle}", np.array(prompt, np.int32), params, 0.0, handle=handle, fork_of=fork)
        )
        for _ in range(rng.randint(0, 5)):
            step()
    for _ in range(5000):
        if not engine.has_work:
            break
        step()
    assert not engine.has_work
    return texts, device, engine


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("policy", ["naive", "static", "continuous-chunked", "fair"])
def test_both_loops_give_the_same_tokens(policy: str, seed: int) -> None:
    plain, _, _ = serve(False, policy, seed)
    overlapped, device, engine = serve(True, policy, seed)
    assert overlapped == plain
    assert device.deepest == 2
    assert engine.scheduler.kv.num_free == 26
    if policy == "continuous-chunked":
        assert engine.scheduler.preemptions > 0

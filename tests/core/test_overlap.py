"""The overlapped loop against the plain one, over a device that hands tokens back a step late."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from async_device import AsyncDevice, Clock

from camshaft.core.config import ServeConfig
from camshaft.core.engine import Engine
from camshaft.core.request import Request, SamplingParams
from camshaft.policies.registry import load_policy


def serve(overlap: bool, policy: Any, seed: int) -> tuple[dict[int, list[int]], AsyncDevice, Engine]:
    rng = random.Random(seed)
    config = ServeConfig(
        model="m",
        max_num_batched_tokens=90,
        enable_prefix_caching=True,
        long_prefill_token_threshold=0,
        max_wait_s=120.0,
        scheduler_reserve_full_isl=True,
        async_scheduling=overlap,
    )
    device = AsyncDevice()
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

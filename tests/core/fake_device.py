"""An engine over a device that computes nothing and draws by a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from camshaft.core.config import ServeConfig
from camshaft.core.engine import Engine
from camshaft.core.execute.base import Capacity
from camshaft.core.messages import Logprob, Output
from camshaft.core.request import Request, SamplingParams
from camshaft.core.schedule.plan import StepPlan, StepResult
from camshaft.policies.registry import load_policy

EOS = 1


class FakeDevice:
    """Draws 2 + (sequence length mod 7), or end-of-sequence at a length divisible by 11."""

    def __init__(self, **capacity: Any) -> None:
        defaults: dict[str, Any] = {
            "num_blocks": 40,
            "block_size": 4,
            "max_model_len": 100,
            "max_num_seqs": 6,
            "vocab_size": 1000,
            "eos_token_ids": (EOS,),
        }
        self.capacity = Capacity(**{**defaults, **capacity})
        self.closed = False
        self.fail: dict[int, str] = {}

    def open(self) -> Capacity:
        return self.capacity

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        rows = handle.rows[handle.samples]
        lengths = (handle.starts + handle.num_tokens)[handle.samples]
        tokens = np.where(lengths % 11 == 0, EOS, 2 + lengths % 7).astype(np.int32)
        logprobs = {int(row): Logprob([int(t)], [-0.5], 1) for row, t in zip(rows, tokens, strict=True)}
        return StepResult(handle.step, rows, tokens, 1.0, logprobs=logprobs, failed=dict(self.fail))

    def close(self) -> None:
        self.closed = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def make_engine(
    policy: Any = "continuous-chunked", record: Path | None = None, overlap: bool = False, **capacity: Any
) -> Engine:
    config = ServeConfig(
        async_scheduling=overlap,
        model="m",
        max_num_batched_tokens=32,
        enable_prefix_caching=True,
        long_prefill_token_threshold=0,
        max_wait_s=120.0,
        scheduler_reserve_full_isl=True,
        record=str(record) if record else None,
    )
    engine = Engine(config, FakeDevice(**capacity), load_policy(policy), clock=Clock())
    engine.open()
    return engine


def request(handle: int, prompt: list[int], **params: Any) -> Request:
    fields = {key: params.pop(key) for key in ("tenant", "priority", "fork_of") if key in params}
    return Request(
        id=f"r{handle}",
        prompt=np.array(prompt, dtype=np.int32),
        params=SamplingParams(**params),
        arrival_s=0.0,
        handle=handle,
        **fields,
    )


def run(engine: Engine) -> dict[int, list[Output]]:
    outputs: dict[int, list[Output]] = {}
    for _ in range(2000):
        if not engine.has_work:
            return outputs
        for output in engine.step():
            outputs.setdefault(output.handle, []).append(output)
    raise AssertionError("not done")

"""An engine that says what the prompt tells it to: fast, deterministic, without weights.

Greedy output repeats the prompt's own tokens and then ends; with a temperature the tokens are drawn from
the prompt by the seed. It holds requests, "blocks" and a waiting queue as a real one does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from camshaft.core.errors import CapacityError, EngineError, ModelError, RequestError
from camshaft.core.messages import Logprob, Output, Outputs, Ready, Stats, Timing
from camshaft.core.request import Request

BLOCK = 16


@dataclass
class _Running:
    request: Request
    script: list[int]
    random: random.Random
    made: int = 0
    end: int = 0

    @property
    def blocks(self) -> int:
        return -(-(self.request.prompt_len + self.made) // BLOCK)


@dataclass
class FakeEngine:
    """Implements what the engine process needs."""

    eos: int
    max_model_len: int = 256
    max_num_seqs: int = 4
    num_blocks: int = 64
    step_s: float = 0.0
    open_s: float = 0.0
    fail_open: str = ""
    refuse_token: int = -1  # a prompt that starts with it is rejected by the engine
    crash_token: int = -1  # a prompt that starts with it kills the engine
    running: list[_Running] = field(default_factory=list)
    waiting: list[_Running] = field(default_factory=list)
    steps: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    ledger: dict[str, list[int]] = field(default_factory=dict)
    blocked: bool = False

    def clock(self) -> float:
        return time.monotonic()

    def open(self) -> Ready:
        time.sleep(self.open_s)
        if self.fail_open == "capacity":
            raise CapacityError("weights need 80 GiB, this machine has 24 GiB")
        if self.fail_open == "model":
            raise ModelError("model.safetensors: truncated")
        return Ready(self.max_model_len, self.num_blocks, BLOCK, self.max_num_seqs, "fake")

    def add(self, request: Request) -> None:
        if len(request.prompt) and request.prompt[0] == self.refuse_token:
            raise RequestError("the engine does not like this prompt", "prompt")
        script = [int(token) for token in request.prompt]
        state = _Running(request, script, random.Random(request.params.seed))
        state.end = request.params.max_tokens
        self.waiting.append(state)
        self.ledger[request.id] = []

    def abort(self, handles: list[int]) -> None:
        gone = set(handles)
        self.running = [r for r in self.running if r.request.handle not in gone]
        self.waiting = [r for r in self.waiting if r.request.handle not in gone]

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def step(self) -> Outputs:
        if self.step_s:
            time.sleep(self.step_s)
        self.steps += 1
        while self.waiting and len(self.running) < self.max_num_seqs:
            self.running.append(self.waiting.pop(0))
        outputs = [self._advance(state) for state in self.running]
        self.running = [s for s, o in zip(self.running, outputs, strict=True) if o.finish_reason is None]
        plain = [o for o in outputs if _is_plain(o)]
        return Outputs(
            [o for o in outputs if not _is_plain(o)],
            handles=np.asarray([o.handle for o in plain], dtype=np.int32).tobytes(),
            tokens=np.asarray([o.tokens[0] for o in plain], dtype=np.int32).tobytes(),
        )

    def _advance(self, state: _Running) -> Output:
        request, params = state.request, state.request.params
        if request.prompt[0] == self.crash_token:
            raise EngineError("the device fell off the bus")
        self.ledger[request.id].append(self.steps)
        token = self._next(state)
        state.made += 1
        self.generated += 1
        output = Output(request.handle, [token])
        if state.made == 1:
            self.prompt_tokens += request.prompt_len
            output.cached_tokens = 0
            if params.prompt_logprobs is not None:
                output.prompt_logprobs = [
                    _logprob(int(t), params.prompt_logprobs) for t in request.prompt[1:]
                ]
        if params.logprobs is not None:
            output.logprobs = [_logprob(token, params.logprobs)]
        if token in params.stop_token_ids or (token == self.eos and not params.ignore_eos):
            output.finish_reason, output.stop_token = "stop", token
        elif state.made >= state.end or request.prompt_len + state.made >= self.max_model_len:
            output.finish_reason = "length"
        if output.finish_reason:
            output.timing = Timing(1.0, 2.0, 3.0, 0, 0)
        return output

    def _next(self, state: _Running) -> int:
        params, script = state.request.params, state.script
        if params.logit_bias:
            return max(params.logit_bias, key=lambda token: params.logit_bias[token])
        if params.temperature > 0:
            return state.random.choice(script)
        if state.made < len(script) or params.ignore_eos or state.made < params.min_tokens:
            return script[state.made % len(script)]
        return self.eos

    def stats(self) -> Stats:
        return Stats(
            step=self.steps,
            running=len(self.running),
            waiting=len(self.waiting),
            used_blocks=sum(state.blocks for state in self.running),
            total_blocks=self.num_blocks,
            prefix_queries=0,
            prefix_hits=0,
            preemptions=0,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generated,
            policy_faults=0,
            waste=0.0,
            iteration_tokens=[len(self.running)],
            step_ms=[1.0],
        )

    def query(self, what: str, argument: str) -> dict[str, Any]:
        if what == "explain":
            if argument not in self.ledger:
                return {"error": f"no request {argument!r} is remembered"}
            return {"id": argument, "token_steps": self.ledger[argument]}
        if what == "stats":
            stats = self.stats()
            return {"used_blocks": stats.used_blocks, "running": stats.running, "waiting": stats.waiting}
        return {"ok": True}

    def check_integrity(self) -> None:
        if not self.has_work and (self.running or self.waiting):
            raise EngineError("blocks were lost")

    def close(self) -> None:
        self.running = []


def _is_plain(output: Output) -> bool:
    return not (output.finish_reason or output.logprobs or output.cached_tokens is not None)


def _logprob(token: int, top: int) -> Logprob:
    others = [(token + i) % 200 for i in range(top)]
    return Logprob([token, *others], [-0.5, *(-0.5 - i for i in range(top))], 1)


def fake_factory(**options: Any) -> Callable[[], FakeEngine]:
    """A factory that crosses to the engine process by pickle."""
    return partial(FakeEngine, **options)

"""200 requests of every kind, many of them aborted: afterwards nothing of them is held anywhere."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sizes import sizes_of

from camshaft.core.build import build_engine, resolve_for_serving
from camshaft.core.config import load_config
from camshaft.core.engine import Engine
from camshaft.core.request import Request, SamplingParams

REQUESTS = 200
# Held on purpose and bounded: what `engine explain` may be asked, what may be matched again, one entry a size
# of batch, and counters of tenants that may come back. Of the free blocks, those that may be matched change.
REMEMBERED = (
    ".ledger.", ".kv.prefix.", ".kv.pool._empty", ".kv.pool._kept", "._batches", "._recorded", "_counters",
)  # fmt: skip


def engine_of(folder: Path, policy: str, overlap: bool) -> Engine:
    values = {
        "model": str(folder),
        "device": "cpu",
        "policy": policy,
        "max_model_len": 256,
        "num_gpu_blocks_override": 40,  # few, so that some are evicted
        "max_num_seqs": 8,
        "max_num_batched_tokens": 48 if policy != "static" else 256,
        "async_scheduling": overlap,
    }
    engine = build_engine(resolve_for_serving(load_config(values)).config)
    engine.open()
    return engine


def some_request(rng: random.Random, handle: int, before: Request | None) -> Request:
    def maybe(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.25 else otherwise

    fork = before if before is not None and rng.random() < 0.2 else None
    shared, own = rng.choice([0, 16, 40]), rng.randint(1, 90)
    prompt = np.array([*range(20, 20 + shared), *rng.choices(range(256), k=own)], np.int32)
    params = SamplingParams(
        max_tokens=rng.randint(1, 40),
        min_tokens=maybe(1, 0),
        temperature=maybe(1.0, 0.0),
        top_k=maybe(5, 0),
        top_p=maybe(0.9, 1.0),
        min_p=maybe(0.05, 0.0),
        repetition_penalty=maybe(1.2, 1.0),
        presence_penalty=maybe(0.5, 0.0),
        frequency_penalty=maybe(0.5, 0.0),
        logit_bias=maybe({5: 2.0}, {}),
        allowed_token_ids=maybe(tuple(range(64)), ()),
        bad_words=maybe(((7, 8), (9,)), ()),
        stop_token_ids=maybe((11, 12), ()),
        ignore_eos=maybe(True, False),
        seed=maybe(rng.randrange(100), None),
        logprobs=maybe(2, None),
        prompt_logprobs=maybe(1, None),
    )
    return Request(
        f"r{handle}",
        prompt if fork is None else fork.prompt,
        params,
        0.0,
        priority=rng.randint(0, 2),
        tenant=f"tenant {handle}",
        deadline_s=maybe(1e9, None),
        fork_of=None if fork is None else fork.id,
        cache_salt=maybe(b"salt", b"") if fork is None else fork.cache_salt,
        handle=handle,
    )


def play(engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    request = None
    for handle in range(REQUESTS):
        request = some_request(rng, handle, request)
        engine.add(request)
        for _ in range(rng.randint(0, 4)):
            engine.step()
        if rng.random() < 0.4:
            engine.abort([rng.randint(max(0, handle - 8), handle)])
    finish(engine)


def finish(engine: Engine) -> None:
    """Runs what is there, and a plain request: with its step the executor hears which rows are free."""
    while engine.has_work:
        engine.step()
    plain = SamplingParams(temperature=0.0, ignore_eos=True)
    engine.add(Request("plain", np.array([5], np.int32), plain, 0.0, handle=REQUESTS))
    while engine.has_work:
        engine.step()
    engine.check_integrity()
    engine.stats()  # takes the figures of the steps with it


def held(engine: Engine) -> dict[str, int]:
    return {
        path: size
        for path, size in sizes_of(engine, "engine").items()
        if not any(name in path for name in REMEMBERED)
    }


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["continuous-chunked", "static", "fair"])
def test_an_engine_holds_nothing_of_what_has_ended(tiny_llama: Path, policy: str, overlap: bool) -> None:
    engine = engine_of(tiny_llama, policy, overlap)
    finish(engine)
    before = held(engine)
    play(engine, 1)
    after = held(engine)
    assert {path: (before.get(path), size) for path, size in after.items() if before.get(path) != size} == {}
    assert len(before) > 50
    if policy == "continuous-chunked":
        assert engine.scheduler.preemptions > 0
    engine.close()

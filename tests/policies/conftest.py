"""Views made by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.policies.base import StepView


def make_view(seq: int = 0, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "id": f"r{seq}",
        "seq": seq,
        "arrival_s": float(seq),
        "tenant": "",
        "priority": 0,
        "deadline_s": None,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "computed_tokens": 0,
        "generated_tokens": 0,
        "max_tokens": 16,
        "preemptions": 0,
        "blocks_held": 0,
    }
    return SimpleNamespace(**{**defaults, **fields})


def make_step(**fields: Any) -> StepView:
    defaults: dict[str, Any] = {
        "step": 0,
        "now_s": 0.0,
        "free_blocks": 100,
        "total_blocks": 100,
        "block_size": 16,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "num_running": 0,
        "num_decoding": 0,
        "num_waiting": 1,
        "decode_context_tokens": 0,
        "oldest_wait_s": 0.0,
        "last": None,
    }
    return StepView(**{**defaults, **fields})


@pytest.fixture
def view() -> Callable[..., Any]:
    return make_view


@pytest.fixture
def step() -> Callable[..., StepView]:
    return make_step

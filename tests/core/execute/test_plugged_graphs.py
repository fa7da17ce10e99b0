"""Decodes of a model that transformers defines: by captured graphs where it waits for nothing, and if not, why."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from device_support import Driver, FakeAccelerator, Running

from camshaft.core.model.fallback import FallbackModel
from camshaft.core.request import SamplingParams

GPT_OSS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def load(folder: Any) -> FallbackModel:
    return FallbackModel(folder, torch.device("cpu"), torch.float32)


def requests() -> list[Running]:
    rng, greedy = np.random.default_rng(4), SamplingParams(temperature=0.0, max_tokens=6)
    return [Running(rng.integers(0, 256, 3 + 5 * i).tolist(), greedy) for i in range(8)]


@pytest.mark.parametrize("padding", [0, 1])
def test_gpt_oss_gives_the_same_tokens_by_graphs(make_tiny_model: Any, padding: int) -> None:
    model = load(make_tiny_model("gpt_oss", **GPT_OSS))
    on_host, by_graph = requests(), requests()
    Driver(model, 3).run(on_host)
    driver = Driver(model, 3, FakeAccelerator(), sizes=(1, 2, 4, 8))
    driver.run(by_graph, evictions=0.05, padding=padding)
    assert [request.drawn for request in by_graph] == [request.drawn for request in on_host]
    assert driver.figures["graph_steps"] > 0
    assert set(driver.figures) == {"graph_steps", "eager_steps.prefill"}


def test_a_model_that_waits_runs_without_graphs_and_says_where(
    make_tiny_model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """GPT-2 asks in each step whether its tokens are padding."""
    with caplog.at_level(logging.WARNING, "camshaft.graphs"):
        driver = Driver(load(make_tiny_model("gpt2")), 3, FakeAccelerator(), sizes=(1, 2))
    assert "GPT2LMHeadModel run without captured graphs: _local_scalar_dense" in caplog.text
    driver.run(requests()[:1])
    assert set(driver.figures) == {"eager_steps.model"}


def test_a_model_that_waits_for_several_sequences_alone_is_found_out(make_tiny_model: Any) -> None:
    model = load(make_tiny_model("gpt_oss", **GPT_OSS))
    forward = model.forward

    def waits(batch: Any, cache: Any) -> torch.Tensor:
        if len(batch.tokens) > 1:
            batch.tokens.sum().item()
        return forward(batch, cache)

    model.forward = waits  # type: ignore[method-assign]
    driver = Driver(model, 3, FakeAccelerator(), sizes=(1, 2))
    driver.run(requests()[:1])
    assert set(driver.figures) == {"eager_steps.model"}

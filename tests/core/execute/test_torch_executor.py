from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_support import BLOCK, BLOCKS, Driver, Running, int32
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from camshaft.core.arithmetic.memory import DeviceMemory
from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.config import Hardware, ServeConfig, load_config, resolve
from camshaft.core.errors import CapacityError, ConfigError, EngineError
from camshaft.core.execute.cache import allocate_cache, copy_blocks
from camshaft.core.execute.limits import Limits
from camshaft.core.execute.load import device_of, dtype_of, limits_of
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.base import Model
from camshaft.core.model.loading import open_weights
from camshaft.core.model.registry import build
from camshaft.core.request import SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Model:
    return build(read_shape(tiny_llama), open_weights(tiny_llama), CPU, torch.float32)


def prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, 256, n).tolist() for n in lengths]


def greedy(max_tokens: int = 8, **more) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **more)


def alone(model: Model, prompt: list[int], params: SamplingParams) -> Running:
    request = Running(prompt, params)
    Driver(model, 0).run([request], whole=True)
    return request


def test_greedy_tokens_equal_transformers(model: Model, tiny_llama: Path) -> None:
    reference: Any = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    requests = [Running(p, greedy(12)) for p in prompts(1, 2, 7, 8, 9, 60, 150)]
    Driver(model, 1).run(requests)
    for request in requests:
        prompt = torch.tensor([request.prompt])
        expected = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(request.prompt) :]
        assert request.drawn == expected.tolist()


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**20),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    evictions=st.sampled_from([0.0, 0.1]),
    padding=st.sampled_from([0, 13]),
)
def test_tokens_and_logprobs_are_the_same_bits_under_any_schedule(
    model: Model, seed: int, lengths: list[int], evictions: float, padding: int
) -> None:
    params = [
        SamplingParams(temperature=float(i % 2), seed=i, max_tokens=4, logprobs=2, prompt_logprobs=1)
        for i in range(len(lengths))
    ]
    requests = [Running(p, q) for p, q in zip(prompts(*lengths), params, strict=True)]
    Driver(model, seed).run(requests, evictions, padding)
    for request in requests:
        expected = alone(model, request.prompt, request.params)
        assert request.drawn == expected.drawn
        assert request.logprobs == expected.logprobs
        assert request.prompt_logprobs == expected.prompt_logprobs


def test_logprobs_equal_transformers(model: Model, tiny_llama: Path) -> None:
    (prompt,) = prompts(20)
    got = alone(model, prompt, greedy(3, logprobs=2, prompt_logprobs=0))
    reference: Any = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([got.known])).logits[0].log_softmax(-1)
    assert len(got.prompt_logprobs) == len(prompt) - 1
    for i, position in enumerate(got.prompt_logprobs):
        assert position.token_ids == [prompt[i + 1]]
        assert position.logprobs[0] == pytest.approx(float(expected[i, prompt[i + 1]]), abs=1e-3)
    assert len(got.logprobs) == 3
    for i, position in enumerate(got.logprobs):
        row = expected[len(prompt) - 1 + i]
        assert position.token_ids[0] == got.drawn[i]
        assert position.rank == 1
        assert position.token_ids[1:] == row.topk(2).indices.tolist()
        assert position.logprobs[1:] == pytest.approx(row.topk(2).values.tolist(), abs=1e-3)


def test_copied_blocks_serve_as_the_originals(model: Model) -> None:
    """A fork: the second row continues from blocks of the first, the last, partial one copied."""
    (prompt,) = prompts(BLOCK + 3)
    expected = alone(model, prompt, greedy(2)).drawn
    driver = Driver(model, 0)
    params = greedy(2)

    def plan(step: int, rows: list[int], starts: list[int], counts: list[int], **more) -> StepPlan:
        return StepPlan(step, int32(rows), int32(starts), int32(counts), np.ones(len(rows), bool), 0, **more)

    first = plan(
        0, [0], [0], [len(prompt)],
        added=(NewRow(0, "a", int32(prompt), len(prompt), params),),
        table_rows=int32([0, 0]), table_indices=int32([0, 1]), table_blocks=int32([4, 9]),
    )  # fmt: skip
    drawn = driver.executor.collect(driver.executor.launch(first)).tokens.tolist()
    fork = plan(
        1, [0, 3], [len(prompt)] * 2, [1, 1],
        added=(NewRow(3, "b", int32([*prompt, *drawn]), len(prompt), params),),
        table_rows=int32([3, 3]), table_indices=int32([0, 1]), table_blocks=int32([4, 2]),
        copies=int32([[9, 2]]),
    )  # fmt: skip
    after = driver.executor.collect(driver.executor.launch(fork)).tokens.tolist()
    assert drawn + after == [expected[0], expected[1], expected[1]]


def test_copy_blocks_reads_all_sources_first(model: Model) -> None:
    limits = Limits(num_blocks=5, block_size=BLOCK, max_num_seqs=1, max_model_len=8, max_num_batched_tokens=8)
    cache = allocate_cache(model, limits)
    for layer in (*cache.k, *cache.v):
        layer.copy_(torch.arange(5.0).view(5, 1, 1, 1).expand_as(layer))
    copy_blocks(cache, torch.tensor([0, 1, 4]), torch.tensor([1, 2, 3]))
    for layer in (*cache.k, *cache.v):
        assert layer[:, 0, 0, 0].tolist() == [0.0, 0.0, 1.0, 4.0, 4.0]


def test_a_row_whose_logits_are_not_numbers_fails_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(model, 0)
    forward = model.forward

    def poisoned(batch, cache):
        logits = forward(batch, cache)
        logits[1] = float("nan")
        return logits

    monkeypatch.setattr(model, "forward", poisoned)
    plan = StepPlan(
        0, int32([0, 1]), int32([0, 0]), int32([3, 3]), np.ones(2, bool), 0,
        added=tuple(NewRow(r, str(r), int32([5, 6, 7]), 3, greedy()) for r in (0, 1)),
        table_rows=int32([0, 1]), table_indices=int32([0, 0]), table_blocks=int32([0, 1]),
    )  # fmt: skip
    result = driver.executor.collect(driver.executor.launch(plan))
    assert list(result.failed) == [1]
    assert "not finite" in result.failed[1]


def test_capacity_and_closing(model: Model) -> None:
    driver = Driver(model, 0)
    shape = model.shape
    assert (driver.capacity.num_blocks, driver.capacity.vocab_size) == (BLOCKS, shape.vocab_size)
    driver.executor.close()
    driver.executor.close()
    with pytest.raises(EngineError, match="not open"):
        driver.executor.launch(StepPlan(0, int32([]), int32([]), int32([]), np.zeros(0, bool), 0))


def resolved(folder: Path, **keys: Any) -> ServeConfig:
    host = Hardware(kind="cpu", name="cpu", memory_bytes=1 << 34)
    return resolve(load_config({"model": str(folder), **keys}), host, read_shape(folder)).config


def test_opens_from_a_configuration(tiny_llama: Path) -> None:
    config = resolved(
        tiny_llama,
        device="cpu",
        dtype="float32",
        max_model_len=128,
        max_num_seqs=4,
        block_size=16,
        kv_cache_memory_bytes=1 << 20,
    )
    executor = TorchExecutor.from_config(config)
    capacity = executor.open()
    per_block = 3 * 2 * 2 * 16 * 16 * 4  # layers, k and v, heads, head size, tokens, bytes
    assert capacity.num_blocks == min((1 << 20) // per_block, 4 * 128 // 16)
    assert (capacity.max_model_len, capacity.max_num_seqs, capacity.block_size) == (128, 4, 16)
    assert capacity.eos_token_ids == (257,)
    assert capacity.memory["KV cache"] == capacity.num_blocks * per_block
    executor.close()


def no_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("part", "fails"),
    [
        ("allocate_cache", lambda *_: torch.empty(1 << 60, dtype=torch.uint8)),
        ("Sampler", no_memory),  # as Python and NumPy say it
    ],
)
def test_a_process_that_may_not_have_the_memory_is_told_what_to_lower(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, part: str, fails: Callable[..., Any]
) -> None:
    monkeypatch.setattr(f"camshaft.core.execute.torch_executor.{part}", fails)
    executor = TorchExecutor.from_config(
        resolved(tiny_llama, device="cpu", max_model_len=128, max_num_seqs=4)
    )
    with pytest.raises(
        CapacityError, match=r"no memory for the model and its cache: .*kv_cache_memory_bytes"
    ):
        executor.open()


def test_a_cache_too_small_for_one_request_is_refused(tiny_llama: Path) -> None:
    config = resolved(tiny_llama, max_model_len=2048, max_num_seqs=4, kv_cache_memory_bytes=100_000)
    with pytest.raises(CapacityError, match="2,048"):
        limits_of(config, read_shape(tiny_llama), CPU, torch.float32, DeviceMemory(total_bytes=1 << 34))


def test_a_configuration_that_is_not_resolved_is_refused(tiny_llama: Path) -> None:
    config = resolved(tiny_llama).model_copy(update={"max_num_batched_tokens": None})
    with pytest.raises(ConfigError, match="max_num_batched_tokens is not known"):
        limits_of(config, read_shape(tiny_llama), CPU, torch.float32, DeviceMemory(total_bytes=1 << 34))


def test_names_of_devices_and_types() -> None:
    assert dtype_of("auto", CPU) is torch.float32
    assert dtype_of("auto", torch.device("cuda")) is torch.bfloat16
    assert dtype_of("half", CPU) is torch.float16
    with pytest.raises(ConfigError, match="int7"):
        dtype_of("int7", CPU)
    assert device_of("cpu") == CPU
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no GPU"):
            device_of("cuda")

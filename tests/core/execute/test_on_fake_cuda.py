"""Whole runs of the GPU's path on a device that holds torch to what holds there: `fake_cuda`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from device_support import Driver, FakeAccelerator, Running, int32
from fake_cuda import HERE, MEMORY, FakeCuda
from hopper_products import HOPPERS, scaled_product

from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.config import Hardware, load_config, resolve
from camshaft.core.execute import load
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model import fp8
from camshaft.core.model.base import Model
from camshaft.core.model.select import model_shape, open_model
from camshaft.core.request import SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan
from camshaft.kernels.fp8 import FP8
from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight
from camshaft.kernels.silu_mul import silu_mul
from camshaft.kernels.silu_mul.triton import silu_mul_kernel

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.gpu import executor_checks
from tests.gpu.check import Check, Place
from tests.gpu.model_checks import graph, models
from tests.gpu.synthetic import llama

CPU, BF16 = torch.device("cpu"), torch.bfloat16
SIZES, TOKENS = (2, 6), 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=5)
ASKS = [
    GREEDY,
    replace(GREEDY, logprobs=3, prompt_logprobs=2),
    replace(GREEDY, repetition_penalty=1.4, presence_penalty=0.6, allowed_token_ids=tuple(range(90))),
    replace(GREEDY, bad_words=((7,), (9, 11)), min_tokens=5, stop_token_ids=(3,), logit_bias={5: 3.0}, logprobs=0),
    SamplingParams(temperature=0.8, seed=5, max_tokens=5),
    SamplingParams(temperature=1.2, top_k=40, top_p=0.9, min_p=0.01, seed=-3, max_tokens=5, logprobs=1),
]  # fmt: skip
LATENT: dict[str, Any] = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
WINDOWED = {"head_dim": 16, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}  # fmt: skip
# Of transformers: a soft cap and windows, latent attention and experts.
PLUGGED: dict[str, dict[str, Any]] = {"gemma2": WINDOWED, "deepseek_v3": LATENT}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    device, threads = FakeCuda(), torch.get_num_threads()
    device.install(monkeypatch)
    torch.set_num_threads(1)  # as small as these tensors are, more wait for each other
    yield device
    torch.set_num_threads(threads)


def made(kind: str, device: torch.device) -> Model:
    """The same weights on any device."""
    torch.manual_seed(0)
    if kind.startswith("fp8-llama"):
        return llama("tiny", device, BF16, blocked="blocks" in kind)
    return models(kind.removeprefix("fp8-"), Place(device, BF16), fp8=kind.startswith("fp8"))[1]


def requests() -> list[Running]:
    rng = np.random.default_rng(4)
    return [Running(rng.integers(0, 200, 3 + 3 * i).tolist(), ASKS[i % len(ASKS)]) for i in range(8)]


def told(gpu: FakeCuda | None, model: Model, **options: Any) -> tuple[list[list[int]], np.ndarray]:
    """Each request's tokens, and all log-probabilities; of a GPU, where nothing may have waited."""
    asked = requests()
    driver = Driver(model, 3, None if gpu else FakeAccelerator(), SIZES, TOKENS, **options)
    if gpu is not None:
        gpu.waits.clear()
    driver.run(asked[:4], evictions=0.1)  # in chunks
    driver.run(asked[4:], whole=True)
    assert driver.figures["graph_steps"] > 3
    if gpu is not None:
        assert not gpu.waits
        assert not any(graph.left for graph in gpu.graphs), "a graph's own memory is used behind it"
    # Without the ids: of two that are equally likely a GPU may name the other.
    scores = [entry.logprobs for request in asked for entry in (*request.logprobs, *request.prompt_logprobs)]
    return [request.drawn for request in asked], np.concatenate(scores)


@pytest.mark.parametrize(
    "kind", ["llama", "mixtral", "gpt_oss_mxfp4", "gpt_oss", "fp8-llama", "fp8-llama-blocks", "fp8-mixtral"]
)
def test_a_gpu_is_asked_for_what_it_can_do_and_tells_the_same(
    kind: str, gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cache_dtype": FP8} if kind == "fp8-llama" else {}
    monkeypatch.setattr(fp8, "keeps_fp8", lambda device: True)
    expected = told(None, made(kind, CPU), **options)
    with gpu:
        found = told(gpu, made(kind, HERE), **options)
    assert found[0] == expected[0]
    # A GPU sums products in FP8 by other kernels.
    assert found[1] == pytest.approx(expected[1], abs=0.1 if "fp8" in kind else 1e-4)
    assert gpu.launched.launches > 150


@pytest.mark.parametrize("kind", list(PLUGGED))
def test_so_is_it_for_a_model_of_transformers(kind: str, gpu: FakeCuda, make_tiny_model: Any) -> None:
    folder = make_tiny_model(kind, **PLUGGED[kind])
    shape = model_shape(folder)
    expected = told(None, open_model(folder, shape, CPU, BF16))
    with gpu:
        found = told(gpu, open_model(folder, shape, HERE, BF16))
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-4)


def test_a_configuration_opens_by_measurement(
    gpu: FakeCuda, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "device_of", lambda name: HERE)
    monkeypatch.setattr(load, "find_gpu", lambda uuid: None)
    hardware = Hardware(kind="cuda", name="fake", memory_bytes=MEMORY, compute_capability=(9, 0))
    keys = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": TOKENS,
        "max_model_len": 64,
        "kv_cache_memory_bytes": 1 << 20,
    }
    written = load_config({"model": str(tiny_llama), "device": "cuda", "quantization": "fp8", **keys})
    products: list[torch.Size] = []
    monkeypatch.setitem(
        HOPPERS,
        "_scaled_mm",
        lambda a, *rest, **options: products.append(a.shape) or scaled_product(a, *rest, **options),
    )
    executor = TorchExecutor.from_config(resolve(written, hardware, read_shape(tiny_llama)).config)
    with gpu:
        memory = executor.open().memory
        executor.close()
    assert "predicted" in memory
    assert "graphs as captured" in memory
    assert products


@pytest.mark.parametrize("sizes", [(), (2,)])
def test_blocks_are_copied_under_steps_on_their_way(sizes: tuple[int, ...], gpu: FakeCuda) -> None:
    rows, ones, every = int32([0, 1]), int32([1, 1]), np.ones(2, bool)
    prompts = StepPlan(
        0, rows, rows * 0, ones * 3, every, 0,
        added=tuple(NewRow(int(row), str(row), int32([row, 2, 3]), 3, GREEDY) for row in rows),
        table_rows=rows, table_indices=rows * 0, table_blocks=rows,
    )  # fmt: skip
    decodes = [StepPlan(1 + i, rows, ones * (3 + i), ones, every, 2) for i in range(3)]
    row, block = int32([1]), int32([5])
    moving = replace(
        decodes[1], copies=int32([[1, 5]]), table_rows=row, table_indices=row * 0, table_blocks=block
    )
    found = []
    with gpu:
        model = made("llama", HERE)
        for plans in ([prompts, *decodes], [prompts, decodes[0], moving, decodes[2]]):
            executor = Driver(model, 0, None, sizes, TOKENS).executor
            gpu.waits.clear()
            running = [executor.launch(plan) for plan in plans]
            found.append([executor.collect(step).tokens.tolist() for step in running])
            assert not gpu.waits
            assert executor._rows.tokens[1, 3:7].tolist() == [tokens[1] for tokens in found[-1]]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "check",
    [graph(), executor_checks.failed_capture(), executor_checks.drawn_alike()],
    ids=lambda it: it.name,
)
def test_checks_that_need_a_gpu_pass(check: Check, gpu: FakeCuda) -> None:
    with gpu:
        check.run(Place(HERE, BF16))


def test_one_scale_of_a_weight_and_one_of_its_inputs_multiply(gpu: FakeCuda) -> None:
    with gpu:
        whole = Fp8Weight(torch.ones(32, 128, device=HERE).to(FP8), torch.full((1,), 0.5, device=HERE))
        layer = Fp8Linear(whole, input_scale=torch.full((1,), 0.25, device=HERE))
        assert layer(torch.ones(3, 128, device=HERE, dtype=BF16)).tolist() == [[64.0] * 32] * 3


def test_what_no_gpu_does_is_found(gpu: FakeCuda) -> None:
    with gpu:
        mine, host = torch.ones(4, device=HERE), torch.ones(4)
        with pytest.raises(RuntimeError, match="on cuda:0 and on the CPU"):
            _ = mine + host
        with pytest.raises(TypeError):
            mine.numpy()
        narrow = torch.ones(16, 16, device=HERE).to(FP8)
        with pytest.raises(AssertionError, match="row by row"):
            torch._scaled_mm(narrow.t(), narrow.t(), mine[:1], mine[:1])  # pyright: ignore[reportPrivateImportUsage]
        assert not gpu.waits
        for waits in (
            lambda: bool(mine.any()),
            lambda: mine[mine > 0],
            lambda: mine.tolist(),
            lambda: host.to(HERE, non_blocking=True),
            lambda: host.pin_memory().to(HERE),
            lambda: torch.tensor([1], device=HERE),
            lambda: mine.cpu(),
        ):
            before = len(gpu.waits)
            waits()
            assert len(gpu.waits) == before + 1
        host.pin_memory().to(HERE, non_blocking=True)
        assert len(gpu.waits) == before + 1


def test_a_graph_holds_what_was_recorded_and_no_python(gpu: FakeCuda) -> None:
    with gpu:
        count, asked, graph = torch.zeros(1, device=HERE), [1.0], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            left = count.add_(asked[0]) * 2
        assert count.tolist() == [0.0]
        asked[0] = 9.0
        graph.replay()
        graph.replay()
        assert (count.tolist(), left.tolist()) == ([2.0], [4.0])
        assert gpu.graphs[0].left == ["cuda:0 torch.float32 (1,)"]
        with pytest.raises(RuntimeError, match="waits"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            count.item()


def test_a_launch_that_a_driver_refuses_is_found(gpu: FakeCuda) -> None:
    with gpu:
        both, kernel = torch.ones(2, 64, device=HERE, dtype=BF16), cast(Any, silu_mul_kernel)
        assert silu_mul(both).tolist() == [[pytest.approx(0.731, abs=0.01)] * 32] * 2
        assert gpu.launched.launches == 1
        with pytest.raises(AssertionError, match="out is on cpu"):
            kernel[(1, 1)](both, torch.empty(2, 32, dtype=BF16), 32, BLOCK=1024)
        with pytest.raises(AssertionError):
            kernel[(1, 70000)](both, both, 32, BLOCK=1024)

"""Memory on a device: measured when it opens, and short when it runs; all on the CPU with a device's stand-in."""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_support import FakeAccelerator

from camshaft.core.arithmetic.graph_sizes import capture_sizes
from camshaft.core.arithmetic.memory import DeviceMemory, Measured
from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.config import ServeConfig
from camshaft.core.config.budget import Kind, graph_sizes
from camshaft.core.engine import Engine
from camshaft.core.errors import CapacityError, ConfigError, OutOfMemory
from camshaft.core.execute.accelerator import out_of_memory_reason
from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.load import limits_of, weights_that_fit
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.base import Model
from camshaft.core.model.batch import ForwardBatch
from camshaft.core.model.loading import open_weights
from camshaft.core.model.registry import build
from camshaft.core.request import Request, SamplingParams
from camshaft.core.schedule.plan import StepPlan
from camshaft.policies.registry import load_policy

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Model:
    return build(read_shape(tiny_llama), open_weights(tiny_llama), CPU, torch.float32)


class Hungry:
    """A model that takes `per_token` bytes of the device while it runs, and runs out above `most` tokens."""

    def __init__(
        self, model: Model, accelerator: FakeAccelerator, per_token: int = 0, most: int = 10**9
    ) -> None:
        self.shape, self.device, self.dtype = model.shape, model.device, model.dtype
        self._model, self._accelerator = model, accelerator
        self.per_token, self.most = per_token, most
        self.batches: list[ForwardBatch] = []
        self.last: weakref.ref[torch.Tensor] | None = None

    def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
        tokens = len(batch.tokens)
        self.batches.append(batch)
        peak = self._accelerator.held + self.per_token * tokens
        self._accelerator.peak = max(self._accelerator.peak, peak)
        activations = torch.zeros(tokens, 8)
        self.last = weakref.ref(activations)
        if tokens > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines")
        return self._model.forward(batch, cache)


SMALL = Limits(num_blocks=9, block_size=8, max_num_seqs=4, max_model_len=64, max_num_batched_tokens=64)
CONFIG = ServeConfig(
    model="m",
    device="cuda",
    dtype="bfloat16",
    max_model_len=512,
    block_size=16,
    max_num_seqs=8,
    max_num_batched_tokens=100,
    gpu_memory_utilization=0.5,
    kv_cache_dtype="bfloat16",
)


def loaded(model: Any, config: ServeConfig, total: int, weights: int, others: int = 0) -> Loaded:
    memory = DeviceMemory(total_bytes=total, free_bytes=total - others)

    def fit(measured: Measured | None = None) -> Limits:
        return limits_of(config, model.shape, CUDA, torch.bfloat16, memory, measured)

    return Loaded(model, fit(), fit, weights, others)


def test_the_cache_takes_what_a_profile_run_leaves(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    accelerator = FakeAccelerator(graph_bytes=100_000)
    accelerator.held = 3 * MIB  # weights
    hungry = Hungry(model, accelerator, per_token=30_000)
    config = CONFIG.model_copy(update={"max_num_batched_tokens": 100, "max_model_len": 64})
    given = loaded(hungry, config, 900 * MIB, 3 * MIB)
    with caplog.at_level(logging.INFO, "camshaft.memory"):
        capacity = TorchExecutor.of(given, accelerator).open()
    largest = hungry.batches[0]
    assert len(largest.tokens) == 100
    assert largest.logit_indices.tolist() == [
        12,
        25,
        38,
        51,
        63,
        75,
        87,
        99,
    ]  # eight sequences, all sampled from
    assert (largest.slots == -1).all()
    memory = capacity.memory
    assert memory["weights"] == -3 * MIB
    assert memory["activation peak"] == -100 * 30_000
    assert memory["context"] == 0
    buffers = 8 * 384 * 4  # the logits of the largest batch are the bulk
    assert 8 * 100_000 + buffers <= -memory["graphs"] <= 8 * 100_000 + 2 * buffers
    assert memory["graphs as captured"] >= 8 * 100_000
    left = 450 * MIB - 3 * MIB - 3_000_000 + memory["graphs"]
    assert memory["predicted"]["activation peak"] != memory["activation peak"]
    per_block = 3 * 2 * 2 * 16 * 16 * 2  # layers, k and v, heads, head size, tokens, bytes
    assert capacity.num_blocks == min(left // per_block, 8 * 64 // 16)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "activation peak 0.00 (0.00)" in line


def test_a_scarce_device_gives_the_cache_just_what_is_left(model: Model) -> None:
    """Not the estimate decides: a forward pass that takes nearly everything leaves a hundred blocks."""
    per_block = 3 * 2 * 2 * 16 * 16 * 2
    usable = 421 * MIB // 2
    per_token = (usable - 100 * per_block - 50) // 100
    accelerator = FakeAccelerator()
    config = CONFIG.model_copy(update={"enforce_eager": True})
    given = loaded(Hungry(model, accelerator, per_token), config, 421 * MIB, 0)
    assert given.limits.num_blocks == 256  # all rows at full length, by the estimate
    assert TorchExecutor.of(given, accelerator).open().num_blocks == 100


def test_other_processes_and_code_count(model: Model) -> None:
    accelerator = FakeAccelerator()
    accelerator.held = 5 * MIB  # 2 of others, 1 of weights, 2 of code and rows
    given = loaded(Hungry(model, accelerator), CONFIG, 900 * MIB, 1 * MIB, others=2 * MIB)
    memory = TorchExecutor.of(given, accelerator).open().memory
    assert memory["context"] == -2 * MIB
    assert memory["weights"] == -1 * MIB


def test_what_does_not_fit_when_measured_is_refused(model: Model) -> None:
    accelerator = FakeAccelerator()
    given = loaded(Hungry(model, accelerator, per_token=10 * MIB), CONFIG, 900 * MIB, 0)
    with pytest.raises(CapacityError, match=r"activation peak 0\.98"):
        TorchExecutor.of(given, accelerator).open()
    given = loaded(Hungry(model, accelerator, most=50), CONFIG, 900 * MIB, 0)
    with pytest.raises(CapacityError, match=r"100 tokens and 8 sequences.*2\.00 GiB\. Lower") as caught:
        TorchExecutor.of(given, accelerator).open()
    assert "More lines" not in str(caught.value)


class CaptureFails(FakeAccelerator):
    """The end of a capture complains as torch's does, and hides the error that ended it."""

    def capture(self, run: Any, pool: object) -> Any:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 MiB.\nMore lines")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def test_graphs_that_do_not_fit_are_refused_with_the_reason(model: Model) -> None:
    with pytest.raises(
        CapacityError, match=r"9 KV blocks, a step and 2 graphs: .*90\.00 MiB\. Lower gpu_mem"
    ):
        TorchExecutor.of(Loaded(model, replace(SMALL, capture_sizes=(1, 2))), CaptureFails()).open()


def test_weights_that_do_not_fit_are_refused(model: Model) -> None:
    def full() -> Model:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has\nMore lines"
        )

    with pytest.raises(CapacityError, match=r"weights do not fit: .*448\.00 MiB\. GPU 0 has\. End"):
        weights_that_fit(full)
    assert weights_that_fit(lambda: model) is model


def test_a_cache_that_does_not_fit_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has")

    monkeypatch.setattr("camshaft.core.execute.device_open.allocate_cache", full)
    with pytest.raises(CapacityError, match=r"no room for 9 KV blocks.*3\.00 GiB"):
        TorchExecutor.of(Loaded(model, SMALL), FakeAccelerator()).open()


def test_buffers_that_a_model_keeps_count_once(model: Model) -> None:
    """They are within the peak, and still there when what else the device holds is read."""
    accelerator = FakeAccelerator()
    accelerator.held = 4 * MIB  # 1 of weights, 3 of code and rows

    class Keeps(Hungry):
        def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
            if not self.batches:
                accelerator.held += 20 * MIB
                accelerator.peak = accelerator.held + 5 * MIB
            return super().forward(batch, cache)

    config = CONFIG.model_copy(update={"enforce_eager": True})
    given = loaded(Keeps(model, accelerator), config, 900 * MIB, 1 * MIB)
    memory = TorchExecutor.of(given, accelerator).open().memory
    assert memory["activation peak"] == -25 * MIB
    assert memory["context"] == -3 * MIB


def test_sizes_that_are_captured() -> None:
    assert capture_sizes(6) == (1, 2, 3, 4, 5, 6)
    assert capture_sizes(30) == (*range(1, 9), 16, 24, 30)
    assert capture_sizes(256)[-3:] == (240, 248, 256)
    assert capture_sizes(300)[-4:] == (256, 272, 288, 300)
    assert capture_sizes(2000)[-1] == 512
    assert capture_sizes(64, limit=20) == (*range(1, 9), 16, 20)
    assert capture_sizes(64, limit=0) == capture_sizes(64, eager=True) == ()
    assert capture_sizes(6, sizes=(4, 1, 8, 16, 4)) == (1, 4, 8)
    assert capture_sizes(100, sizes=(4, 64, 32), limit=40) == (4, 32)
    with pytest.raises(ConfigError, match="cudagraph_capture_sizes"):
        capture_sizes(6, sizes=(0, 4))


def test_knobs_of_graphs_reach_the_sizes() -> None:
    def sizes(kind: Kind = "cuda", **changes: Any) -> tuple[int, ...]:
        return graph_sizes(CONFIG.model_copy(update={"max_num_seqs": 3, **changes}), kind)

    assert sizes() == (1, 2, 3)
    assert sizes("cpu") == sizes(enforce_eager=True) == ()
    assert sizes(cudagraph_capture_sizes=(2,), max_num_seqs=9) == (2,)
    assert sizes(max_cudagraph_capture_size=4, max_num_seqs=9) == (1, 2, 3, 4)


KINDS = [
    SamplingParams(temperature=0.0, max_tokens=9),
    SamplingParams(temperature=0.9, seed=4, max_tokens=12, top_p=0.95),
    SamplingParams(temperature=0.0, max_tokens=7, repetition_penalty=1.3, logprobs=2, prompt_logprobs=1),
]


def serve(model: Model, most: int, overlap: bool) -> tuple[dict[int, Any], dict[str, int]]:
    accelerator = FakeAccelerator()
    hungry = Hungry(model, accelerator)
    limits = Limits(
        num_blocks=60, block_size=8, max_num_seqs=6, max_model_len=128, max_num_batched_tokens=64,
        capture_sizes=(1, 2, 4),
    )  # fmt: skip
    config = ServeConfig(
        model="m",
        max_num_batched_tokens=64,
        enable_prefix_caching=True,
        long_prefill_token_threshold=0,
        max_wait_s=120.0,
        scheduler_reserve_full_isl=True,
        async_scheduling=overlap,
    )
    executor = TorchExecutor.of(Loaded(hungry, limits), accelerator)
    engine = Engine(config, executor, load_policy("continuous-chunked"))
    engine.open()
    hungry.most = most
    rng = np.random.default_rng(1)
    for handle in range(9):
        prompt = rng.integers(0, 250, 10 + 6 * handle).astype(np.int32)
        engine.add(Request(f"r{handle}", prompt, KINDS[handle % 3], 0.0, handle=handle))
    seen: dict[int, Any] = {handle: ([], [], [], []) for handle in range(9)}
    for _ in range(3000):
        if not engine.has_work:
            break
        for output in engine.step():
            tokens, logprobs, prompts, ends = seen[output.handle]
            tokens += output.tokens
            logprobs += [(p.token_ids, p.rank) for p in output.logprobs or ()]
            prompts += [(p.token_ids, p.rank) for p in output.prompt_logprobs or ()]
            ends += [output.finish_reason] * (output.finish_reason is not None)
        engine.check_integrity()
    assert not engine.has_work
    assert accelerator.released >= 1
    return seen, engine.stats().figures


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("most", [40, 5])
def test_an_engine_short_of_memory_gives_the_same_tokens(model: Model, most: int, overlap: bool) -> None:
    expected, calm = serve(model, 10**9, False)
    assert all(ends in (["length"], ["stop"]) for *_, ends in expected.values())
    assert all(len(prompts) == 9 + 6 * h for h, (_, _, prompts, _) in expected.items() if h % 3 == 2)
    assert "out_of_memory" not in calm
    assert calm["graph_steps"] > 5
    seen, figures = serve(model, most, overlap)
    assert seen == expected
    assert figures["out_of_memory"] >= 1
    assert figures["eager_steps.prefill"] > calm["eager_steps.prefill"]


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nMore"), "CUDA out of memory. Tried 2 GiB"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "Triton Error [CUDA]: out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling",
        ),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), None),
    ],
)
def test_errors_that_mean_want_of_memory(error: RuntimeError, wanted: str | None) -> None:
    assert out_of_memory_reason(error) == wanted


def test_another_error_of_a_step_is_passed_on(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = FakeAccelerator()
    hungry = Hungry(model, accelerator)
    executor = TorchExecutor.of(Loaded(hungry, SMALL), accelerator)
    executor.open()

    def broken(batch: ForwardBatch, cache: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(hungry, "forward", broken)
    rows = np.array([2], dtype=np.int32)
    with pytest.raises(RuntimeError, match="illegal"):
        executor.launch(StepPlan(0, rows, rows * 0, rows * 0 + 1, np.ones(1, bool), 1))


def test_a_failed_step_holds_no_memory(model: Model) -> None:
    accelerator = FakeAccelerator()
    hungry = Hungry(model, accelerator)
    executor = TorchExecutor.of(Loaded(hungry, SMALL), accelerator)
    executor.open()
    hungry.most = 1
    two = np.array([2], dtype=np.int32)
    plan = StepPlan(0, two, two * 0, two, np.ones(1, bool), 0)
    with pytest.raises(
        OutOfMemory, match=r"a step of 2 tokens: CUDA out of memory\. Tried to allocate 2\.00 GiB$"
    ):
        executor.launch(replace(plan))
    assert hungry.last is not None
    assert hungry.last() is None


def test_a_block_is_copied_once_though_the_step_behind_it_fails(model: Model) -> None:
    accelerator = FakeAccelerator()
    hungry = Hungry(model, accelerator)
    executor = TorchExecutor.of(Loaded(hungry, SMALL), accelerator)
    executor.open()
    cache, hungry.most = executor._cache.k[0], 1
    cache[3] = 1.0
    one = np.array([1], dtype=np.int32)
    failing = StepPlan(
        0, one, one * 0, one * 2, np.ones(1, bool), 0, copies=np.array([[3, 5]], dtype=np.int32)
    )
    with pytest.raises(OutOfMemory):
        executor.launch(failing)
    cache[3] = 2.0  # what the failed step, or one that comes before the next launch, wrote there
    executor.collect(executor.launch(StepPlan(1, one, one * 0, one, np.ones(1, bool), 1)))
    assert (cache[5] == 1.0).all()

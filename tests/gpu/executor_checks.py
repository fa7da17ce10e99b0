"""The runtime around a model: steps gathered, drawn and captured on the device, memory measured, memory short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tests.core.execute.device_support import Driver, FakeAccelerator, Running, int32

from camshaft.core.arithmetic.graph_sizes import capture_sizes
from camshaft.core.arithmetic.memory import (
    DeviceMemory,
    Measured,
    MemorySettings,
    memory_budget,
)
from camshaft.core.arithmetic.memory_rules import CAMSHAFT_CUDA
from camshaft.core.arithmetic.shape import shape_from_config
from camshaft.core.errors import OutOfMemory
from camshaft.core.execute.accelerator import Cuda
from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.registry import build
from camshaft.core.request import SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan

from .check import Check, Place
from .model_checks import KINDS, behind, check_near, logits_of, models
from .steps import replay_us

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
ASKS = [
    GREEDY,
    replace(GREEDY, logprobs=2, prompt_logprobs=1),
    replace(GREEDY, min_tokens=6, stop_token_ids=(1,)),
]


def tokens(kind: str, sizes: tuple[int, ...]) -> Check:
    """Whatever the schedule, each greedy token is transformers' own, or within rounding of it."""

    def run(place: Place) -> None:
        theirs, ours = models(kind, place)
        if place.device.type == "cpu":  # where nothing outlives a step, and the interpreter is slow
            driver = Driver(ours, 5, FakeAccelerator(), sizes, max_num_batched_tokens=8)
        else:
            driver = Driver(ours, 5, None, sizes)
        rng = np.random.default_rng(3)
        requests = [Running(rng.integers(0, 512, 3 + 9 * i).tolist(), ASKS[i % len(ASKS)]) for i in range(7)]
        driver.run(requests, evictions=0.05)
        assert bool(driver.figures.get("graph_steps")) == bool(sizes), driver.figures
        rough, distances, told = place.dtype != torch.float32, list[float](), list[float]()
        for request in requests:
            logits = logits_of(theirs, request.prompt, request.drawn)
            forbidden = [1, *driver.capacity.eos_token_ids] if request.params.min_tokens else []
            distances += behind(logits, request.drawn, forbidden)
            if request.params.logprobs is not None:
                own = logits.log_softmax(-1).gather(1, torch.tensor(request.drawn)[:, None])[:, 0].tolist()
                told += [abs(a.logprobs[0] - b) for a, b in zip(request.logprobs, own, strict=True)]
                assert len(request.prompt_logprobs) == len(request.prompt) - 1
        check_near(kind, distances, 0.15 if rough else 1e-3, place)
        check_near(kind, told, 0.5 if rough else 0.01, place)

    return Check(f"executor-{kind}-{'graphs' if sizes else 'eager'}", run)


def drawn_alike() -> Check:
    """A seeded draw by a captured graph is that of the same logits without one."""

    def run(place: Place) -> None:
        _, model = models("llama", place)
        limits = Limits(
            num_blocks=40,
            block_size=16,
            max_num_seqs=8,
            max_model_len=64,
            capture_sizes=(4, 8),
            max_num_batched_tokens=64,
        )
        executor = TorchExecutor.of(Loaded(model, limits))
        executor.open()
        rows = int32(range(6))
        params = [SamplingParams(temperature=1.5, seed=int(row), top_p=0.95) for row in rows]
        plan = StepPlan(
            0, rows, rows * 0, rows * 0 + 5, np.ones(6, bool), 0,
            added=tuple(NewRow(int(r), str(r), int32([r, 2, 3, 4, 5]), 5, params[r]) for r in rows),
            table_rows=rows, table_indices=rows * 0, table_blocks=rows + 1,
        )  # fmt: skip
        executor.collect(executor.launch(plan))
        steps = executor._steps
        assert steps is not None
        assert steps.graphs is not None
        for start in range(5, 12):
            step = StepPlan(1, rows, rows * 0 + start, rows * 0 + 1, np.ones(6, bool), 6)
            result = executor.collect(executor.launch(step))
            assert result.extra == {"graph_steps": 1}
            contexts = torch.full((6,), start + 1, dtype=torch.int32, device=place.device)
            where = torch.arange(6, dtype=torch.int32, device=place.device)
            again = steps._sampler.draw(steps.graphs.logits[:6], where, contexts)
            assert again.tolist() == result.tokens.tolist()
            assert executor._rows.tokens[:6, start + 1].tolist() == result.tokens.tolist()

    return Check("executor-draws-alike", run)


def sized_by_measurement() -> Check:
    """What the engine takes when it is open stays within what it was given, and the graphs within their estimate."""

    def run(place: Place) -> None:
        model = large(4, place)
        cuda = Cuda(place.device)
        cuda.release_cached()
        total, used = torch.cuda.mem_get_info()[1], cuda.used_bytes()
        others = used - cuda.allocated_bytes()
        executor = TorchExecutor.of(loaded(model, total, cuda.allocated_bytes(), others))
        capacity = executor.open()
        memory = capacity.memory
        cuda.release_cached()
        taken = cuda.used_bytes() - others
        given = int(0.5 * total)
        assert taken + -memory["activation peak"] <= given + (1 << 28), (taken, given, memory)
        assert memory["graphs as captured"] <= -1.5 * memory["graphs"] + (1 << 26), memory
        assert -memory["weights"] >= 1 << 27
        executor.close()

    return Check("device-memory-measured", run)


def short_of_memory() -> Check:
    """A step that does not fit says so, leaves nothing behind, and runs once there is room."""

    def run(place: Place) -> None:
        model = large(2, place)
        limits = Limits(
            num_blocks=2000, block_size=16, max_num_seqs=4, max_model_len=20000, max_num_batched_tokens=16384
        )
        executor = TorchExecutor.of(Loaded(model, limits))
        executor.open()
        torch.cuda.empty_cache()
        prompt = int32(np.arange(16000) % 1000)
        blocks = int32(range(1000))
        plan = StepPlan(
            0, int32([0]), int32([0]), int32([16000]), np.ones(1, bool), 0,
            added=(NewRow(0, "a", prompt, 16000, GREEDY),),
            table_rows=blocks * 0, table_indices=blocks, table_blocks=blocks,
        )  # fmt: skip
        hog = [torch.empty(1 << 26, dtype=torch.uint8, device=place.device)]
        free = torch.cuda.mem_get_info()[0]
        hog.append(torch.empty(max(1, free - (64 << 20)), dtype=torch.uint8, device=place.device))
        try:
            executor.launch(plan)
        except OutOfMemory as error:
            assert "16000 tokens" in str(error)  # noqa: PT017 (no pytest where this runs)
        else:
            raise AssertionError("sixteen thousand tokens fitted into 64 MiB")
        hog.clear()
        executor.relieve()
        small = replace(plan, num_tokens=int32([1000]), samples=np.zeros(1, bool), added=(), table_rows=int32([]),
                        table_indices=int32([]), table_blocks=int32([]))  # fmt: skip
        executor.collect(executor.launch(small))
        rest = replace(small, starts=int32([1000]), num_tokens=int32([15000]), samples=np.ones(1, bool))
        assert not executor.collect(executor.launch(rest)).failed
        executor.close()

    return Check("device-memory-short", run)


class Waiting:
    """A model that is not the project's own, and whose forward pass waits for the device."""

    def __init__(self, model: Any, wait: Callable[[torch.Tensor], object]) -> None:
        self.shape = replace(model.shape, architecture="WaitingForCausalLM")
        self.device, self.dtype, self._model, self._wait = model.device, model.dtype, model, wait

    def forward(self, batch: Any, cache: Any) -> torch.Tensor:
        self._wait(batch.tokens)
        return self._model.forward(batch, cache)


def waits_for_event(tensor: torch.Tensor) -> None:
    """A wait that torch does not detect, so that only a capture finds it."""
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def runs_without_graphs(name: str, wait: Callable[[torch.Tensor], object]) -> Check:
    """A model that waits is refused a graph and gives the same tokens without; another one's is captured after it."""

    def run(place: Place) -> None:
        _, model = models("llama", place)
        drawn = []
        for tried, sizes in ((Waiting(model, wait), (1, 4)), (model, ()), (model, (1, 4))):
            driver = Driver(tried, 5, None, sizes)
            requests = [Running([3 + i, 5, 8 * i], GREEDY) for i in range(5)]
            driver.run(requests, evictions=0.0)
            assert bool(driver.figures.get("graph_steps")) == (tried is model and bool(sizes)), driver.figures
            drawn.append([request.drawn for request in requests])
            driver.executor.close()
        assert drawn[0] == drawn[1]

    return Check(f"executor-waits-for-{name}", run)


def failed_capture() -> Check:
    """A capture that fails leaves no memory behind, and the next one succeeds."""

    def run(place: Place) -> None:
        cuda, count = Cuda(place.device), torch.zeros(1, device=place.device)

        def waits() -> None:
            torch.empty(1 << 28, dtype=torch.uint8, device=place.device)
            waits_for_event(count)

        def counts() -> None:
            count.add_(1)

        cuda.release_cached()
        before = torch.cuda.memory_reserved()
        assert cuda.why_no_graph(waits) is not None
        cuda.release_cached()
        assert torch.cuda.memory_reserved() <= before + (1 << 22)
        captured = cuda.capture(counts, cuda.new_pool())
        captured.replay()
        assert int(count) == 1
        assert cuda.why_no_graph(counts) is None

    return Check("executor-capture-fails", run)


class Random:
    """Weights as they are asked for, of a Llama or Qwen of any size, made on the device."""

    def __init__(self, place: Place, sizes: dict[str, tuple[int, ...]]) -> None:
        self._place, self._sizes = place, sizes

    def names(self) -> list[str]:
        return list(self._sizes)

    def get(self, name: str) -> torch.Tensor:
        size = self._sizes[name]
        if len(size) == 1:
            return torch.ones(size, device=self._place.device, dtype=self._place.dtype)
        return torch.randn(size, device=self._place.device, dtype=self._place.dtype) * size[-1] ** -0.5


def large(layers: int, place: Place) -> Any:
    """Qwen3-0.6B's sizes with so many layers and random weights: a step so short that the host shows."""
    hidden, inner, heads, kv_heads, dim, vocab = 1024, 3072, 16, 8, 128, 151936
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": vocab, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
        "intermediate_size": inner, "max_position_embeddings": 20480, "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
    }  # fmt: skip
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    each: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (kv_heads * dim, hidden),
        "self_attn.v_proj": (kv_heads * dim, hidden), "self_attn.o_proj": (hidden, heads * dim),
        "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,), "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    for layer in range(layers):
        sizes |= {f"model.layers.{layer}.{name}.weight": size for name, size in each.items()}
    return build(shape_from_config(config, "random"), Random(place, sizes), place.device, place.dtype)


def loaded(model: Any, total: int, weights: int, others: int, rows: int = 64) -> Loaded:
    """The model with limits at half of the device's memory, as a configuration would give them."""
    sizes = capture_sizes(rows)
    settings = MemorySettings(
        max_num_batched_tokens=4096, max_num_seqs=rows, max_model_len=4096, gpu_memory_utilization=0.5,
        dtype="bfloat16", num_graph_sizes=len(sizes),
    )  # fmt: skip
    device = DeviceMemory(total_bytes=total, free_bytes=total - others)

    def fit(measured: Measured | None = None) -> Limits:
        budget = memory_budget(model.shape, device, settings, CAMSHAFT_CUDA, measured)
        budget.require_fit()
        return Limits(
            num_blocks=budget.num_blocks, block_size=16, max_num_seqs=rows, max_model_len=4096,
            max_num_batched_tokens=4096, capture_sizes=sizes, memory=dict(budget.rows()),
        )  # fmt: skip

    return Loaded(model, fit(), fit, weights, others)


def step_us(executor: TorchExecutor, count: int, steps: int, *, overlap: bool) -> float:
    """Microseconds of a decode step of `count` sequences, the same again and again, from the device's clock."""
    rows, blocks, place = int32(range(count)), 20, 200
    tables = np.stack(np.meshgrid(rows, np.arange(blocks), indexing="ij"), -1).reshape(-1, 2)
    first = StepPlan(
        0, rows, rows * 0, rows * 0 + 1, np.ones(count, bool), count,
        added=tuple(NewRow(int(r), str(r), int32([r]), 1, GREEDY) for r in rows),
        table_rows=int32(tables[:, 0]), table_indices=int32(tables[:, 1]),
        table_blocks=int32(tables[:, 0] * blocks + tables[:, 1]),
    )  # fmt: skip
    executor.collect(executor.launch(first))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    ones, every, behind, warm = rows * 0 + 1, np.ones(count, bool), None, steps // 4
    for step in range(1, steps + 1):
        if step == warm:
            begin.record()
        running = executor.launch(StepPlan(step, rows, rows * 0 + place, ones, every, count))
        if not overlap:
            executor.collect(running)
        elif behind is not None:
            executor.collect(behind)
        behind = running
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / (steps - warm + 1) * 1e3


def host_timings(count: int = 256) -> list[dict[str, Any]]:
    """Decode steps of a small model by a graph and without, in both loops; what a step takes beyond its graph
    alone is time in which the device waits for the host.
    """
    model = large(28, Place(torch.device("cuda"), torch.bfloat16))
    what, rows = f"decode step of 0.6B shapes, {count} sequences", []
    for sizes in ((count,), ()):
        limits = Limits(
            num_blocks=count * 20, block_size=16, max_num_seqs=count, max_model_len=320, capture_sizes=sizes,
            max_num_batched_tokens=1024,
        )  # fmt: skip
        executor = TorchExecutor.of(Loaded(model, limits))
        executor.open()
        name = "graph" if sizes else "eager"
        found = {
            loop: step_us(executor, count, 200, overlap=loop == "overlapped")
            for loop in ("plain", "overlapped")
        }
        rows += [{"what": f"{what}, {name}, {loop} loop", "us": us} for loop, us in found.items()]
        steps = executor._steps
        if steps is not None and steps.graphs is not None:
            alone = replay_us(steps.graphs._graphs[count].replay)
            rows.append({"what": f"{what}, graph alone", "us": alone})
            for loop, us in found.items():
                goal = " (at most 100)" if loop == "overlapped" else ""
                rows.append({"what": f"  the device waits for the host, {loop} loop{goal}", "us": us - alone})
        executor.close()
        torch.cuda.empty_cache()
    return rows


ANYWHERE = [tokens(kind, sizes) for kind in KINDS for sizes in ((1, 2, 4), ())]
ON_A_GPU = [
    runs_without_graphs("value", lambda tokens: tokens[0].item()),
    runs_without_graphs("event", waits_for_event),
    failed_capture(),
    drawn_alike(),
    sized_by_measurement(),
    short_of_memory(),
]

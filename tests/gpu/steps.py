"""Whole decode steps of models with random FP8 weights: in a captured graph, and in the engine's own loop."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.decoder import Decoder

from .synthetic import layer_bytes, llama

PAGE, TOKENS = 16, 8192


def _decode_batch(model: Decoder, batch: int, context: int) -> tuple[ForwardBatch, PagedCache]:
    """`batch` sequences at the last of `context` tokens, and a cache full of numbers."""
    shape, device = model.shape, model.device
    blocks = context // PAGE
    size = (batch * blocks, shape.num_kv_heads, PAGE, shape.head_dim)
    k, v = (
        [torch.randn(size, device=device, dtype=model.dtype) for _ in range(shape.num_layers)]
        for _ in range(2)
    )
    every = torch.arange(batch, device=device)
    tables = torch.randperm(batch * blocks, device=device).view(batch, blocks).int()
    return ForwardBatch(
        tokens=every % shape.vocab_size,
        positions=torch.full((batch,), context - 1, device=device),
        slots=tables[:, -1].long() * PAGE + PAGE - 1,
        query_starts=torch.arange(batch + 1, device=device, dtype=torch.int32),
        context_lens=torch.full((batch,), context, device=device, dtype=torch.int32),
        block_tables=tables,
        logit_indices=every,
        num_decodes=batch,
        max_query_len=1,
        max_context_len=context,
    ), PagedCache(k, v, PAGE)


def decode_step(
    size: str,
    median_s: Callable[[Callable[[], Any]], float],
    copy: float,
    batch: int = 64,
    context: int = 2048,
) -> dict[str, Any]:
    """The product's own forward pass of a decode step, captured once and replayed."""
    model = llama(size, torch.device("cuda"), torch.bfloat16)
    step, cache = _decode_batch(model, batch, context)
    model.forward(step, cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.forward(step, cache)
    seconds = median_s(graph.replay)
    kv_bytes = 2 * batch * context * model.shape.num_kv_heads * 128 * 2 * model.shape.num_layers
    moved = layer_bytes(size) + kv_bytes
    return {
        "what": f"decode step, {size}, {model.shape.num_layers} layers, batch {batch} at {context}", "us": seconds * 1e6,
        "GB": moved / 1e9, "of_copy": moved / seconds / copy, "target": 0.8,
        "judged": "step" if size.startswith("70B") else None,
    }  # fmt: skip


class FirstCome:
    """A policy without parts: first come, first served, prompts in chunks."""

    name, dynamic, accounts = "first-come", False, False

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def order_key(self, view: Any, step: Any) -> tuple[float, ...]:
        return ()

    def victim_key(self, view: Any, step: Any) -> tuple[float, ...]:
        return (-view.seq,)

    def step_budget(self, step: Any) -> Any:
        from camshaft.policies.base import Budget

        return Budget(self._tokens)

    def admit(self, view: Any, step: Any) -> Any:
        from camshaft.policies.base import ADMIT

        return ADMIT

    def on_events(self, events: Any) -> None:
        pass


def host_gap(
    size: str, device: torch.device, *, sequences: int = 256, prompt: int = 256, steps: int = 60
) -> dict[str, Any]:
    """Time of a step that the device has nothing to do, in the overlapped loop of scheduler and executor.

    On the device's own clock it is from one step's begin to the next one's, less the same step's graph replayed
    alone: a step is longer by ten microseconds than the one before. `host_us` is what the host works in a step,
    most of it while the device does.
    """
    from camshaft.core.execute.limits import Limits, Loaded
    from camshaft.core.execute.torch_executor import TorchExecutor

    on_gpu = device.type == "cuda"
    model = llama(size, device, torch.bfloat16 if on_gpu else torch.float32)
    length = prompt + steps + 64
    blocks = sequences * -(-length // PAGE) + 8
    limits = Limits(
        num_blocks=blocks, block_size=PAGE, max_num_seqs=sequences, max_model_len=length,
        max_num_batched_tokens=max(TOKENS, sequences), capture_sizes=(sequences,) if on_gpu else (),
    )  # fmt: skip
    executor = TorchExecutor.of(Loaded(model, limits))
    capacity = executor.open()
    scheduler = _scheduler(capacity, sequences, prompt, steps)
    walls, hosts, behind = [], [], None
    marks: list[Any] = []
    plans: list[Any] = []
    while scheduler.has_work and len(walls) < steps:
        began = time.perf_counter()
        plan = scheduler.schedule(began)
        decodes = plan is not None and plan.num_decodes == sequences
        if on_gpu and decodes:
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()
            plans.append(plan)
        launched = executor.launch(plan) if plan is not None else None
        waited = time.perf_counter()
        result = executor.collect(behind) if behind is not None else None
        back = time.perf_counter()
        if result is not None:
            scheduler.update(result, back)
        behind, ended = launched, time.perf_counter()
        if decodes:
            walls.append(ended - began)
            hosts.append(waited - began + ended - back)
    wall, host = (float(np.median(part[len(part) // 3 :])) for part in (walls, hosts))
    found: dict[str, Any] = {
        "what": f"host, {size}, {sequences} sequences", "wall_us": wall * 1e6, "host_us": host * 1e6, "steps": len(walls),
    }  # fmt: skip
    if on_gpu:
        found |= _device_gap(executor, marks, plans, sequences)
    executor.close()
    return found


def _device_gap(executor: Any, marks: list[Any], plans: list[Any], sequences: int) -> dict[str, Any]:
    """By events recorded at the begin of each decode step, and by the graph of one of these steps, run alone."""
    torch.cuda.synchronize()
    periods_us = [a.elapsed_time(b) * 1e3 for a, b in pairwise(marks)]
    middle = 2 * len(periods_us) // 3
    period_us = float(np.median(periods_us[middle - 8 : middle + 9]))
    graphs = executor._steps.graphs if executor._steps is not None else None
    assert graphs is not None
    graphs.run(plans[middle], sequences)
    alone_us = replay_us(graphs._graphs[sequences].replay)
    return {"us": period_us, "gap_us": max(0.0, period_us - alone_us), "target_us": 100.0, "judged": "gap"}


def replay_us(replay: Callable[[], None], times: int = 20) -> float:
    """Microseconds of a graph that is started again before it ends: no host in it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    begin.record()
    for _ in range(times):
        replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times * 1e3


def _scheduler(capacity: Any, sequences: int, prompt: int, steps: int) -> Any:
    """The engine's scheduler with every request added; its logger is left out where structlog is not installed."""
    try:
        import structlog  # noqa: F401
    except ModuleNotFoundError:
        silent = types.ModuleType("structlog")
        silent.get_logger = lambda *names: None  # type: ignore[attr-defined]
        silent.is_configured = lambda: True  # type: ignore[attr-defined]
        sys.modules["structlog"] = silent
    from camshaft.core.request import Request, SamplingParams
    from camshaft.core.schedule.params import SchedulerParams
    from camshaft.core.schedule.scheduler import Scheduler

    scheduler = Scheduler(
        SchedulerParams(
            num_blocks=capacity.num_blocks, block_size=PAGE, max_model_len=capacity.max_model_len,
            max_num_seqs=sequences, max_num_batched_tokens=max(TOKENS, sequences), enable_prefix_caching=False,
        ),
        FirstCome(max(TOKENS, sequences)),
    )  # fmt: skip
    generator = np.random.default_rng(0)
    for i in range(sequences):
        tokens = generator.integers(0, capacity.vocab_size, prompt).astype(np.int32)
        params = SamplingParams(temperature=1.0, max_tokens=steps + 40, ignore_eos=True)
        scheduler.add(Request(id=str(i), prompt=tokens, params=params, arrival_s=0.0), 0.0)
    return scheduler

"""Steps as a GPU runs them, on the CPU: gathered and drawn on the device, by graphs and without, against the host's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_support import ROWS, Driver, FakeAccelerator, Running, int32
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.config import ServeConfig
from camshaft.core.engine import Engine
from camshaft.core.execute.device_steps import DeviceStep
from camshaft.core.execute.graphs import DecodeGraphs
from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.rows import RowState
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.base import Model
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.loading import open_weights
from camshaft.core.model.registry import build
from camshaft.core.request import Request, SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan
from camshaft.policies.registry import load_policy

CPU = torch.device("cpu")
SIZES = (1, 2, 4)  # a full batch of six rows is larger than any


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Model:
    return build(read_shape(tiny_llama), open_weights(tiny_llama), CPU, torch.float32)


GREEDY = SamplingParams(temperature=0.0, max_tokens=7)
# Rows of every kind; all but the last three draw greedily, so that host and device must agree on each token.
KINDS = [
    GREEDY,
    replace(GREEDY, logprobs=3, prompt_logprobs=2),
    replace(GREEDY, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.3),
    replace(GREEDY, bad_words=((7,), (9, 11), tuple(range(20)))),
    replace(GREEDY, min_tokens=5, stop_token_ids=(3, 4), logit_bias={5: 3.0, 8: -2.0}, logprobs=0),
    replace(GREEDY, frequency_penalty=2.0, bad_words=((12,),)),
    SamplingParams(temperature=0.8, seed=5, max_tokens=7),
    SamplingParams(temperature=1.2, top_k=40, top_p=0.9, min_p=0.01, seed=-3, max_tokens=7, logprobs=1),
    SamplingParams(top_p=0.0, seed=11, max_tokens=7, presence_penalty=1.5),
]
GREEDY_KINDS = 6


def requests_of(count: int, kinds: list[SamplingParams] = KINDS) -> list[Running]:
    rng = np.random.default_rng(4)
    return [Running(rng.integers(0, 256, 3 + 5 * i).tolist(), kinds[i % len(kinds)]) for i in range(count)]


def run(model: Model, requests: list[Running], seed: int, **options: Any) -> Driver:
    rest = {name: options.pop(name) for name in ("evictions", "padding", "whole") if name in options}
    driver = Driver(model, seed, **options)
    driver.run(requests, **rest)
    return driver


def told(request: Running) -> tuple[Any, ...]:
    return request.drawn, request.logprobs, request.prompt_logprobs


@pytest.mark.parametrize("sizes", [(), SIZES])
def test_greedy_rows_with_every_edit_equal_the_hosts(model: Model, sizes: tuple[int, ...]) -> None:
    on_host, on_device = (requests_of(12, KINDS[:GREEDY_KINDS]) for _ in range(2))
    run(model, on_host, 3)
    driver = run(model, on_device, 3, accelerator=FakeAccelerator(), sizes=sizes)
    for mine, theirs in zip(on_device, on_host, strict=True):
        assert mine.drawn == theirs.drawn
        assert [p.token_ids for p in mine.logprobs] == [p.token_ids for p in theirs.logprobs]
        assert mine.prompt_logprobs == theirs.prompt_logprobs
    assert bool(driver.figures.get("graph_steps")) == bool(sizes)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**20),
    count=st.integers(1, 12),
    evictions=st.sampled_from([0.0, 0.1]),
    padding=st.sampled_from([0, 1, 13]),
)
def test_graphs_change_no_bit_under_any_schedule(
    model: Model, seed: int, count: int, evictions: float, padding: int
) -> None:
    by_graph, alone = requests_of(count), requests_of(count)
    run(
        model,
        by_graph,
        seed,
        accelerator=FakeAccelerator(),
        sizes=SIZES,
        evictions=evictions,
        padding=padding,
    )
    for mine, theirs in zip(by_graph, alone, strict=True):
        run(model, [theirs], 0, accelerator=FakeAccelerator(), whole=True)
        assert told(mine) == told(theirs)


def test_graphs_are_captured_from_large_to_small_in_one_pool(model: Model) -> None:
    accelerator = FakeAccelerator()
    seen: list[int] = []
    forward = model.forward

    class Watched:
        shape, device, dtype = model.shape, model.device, model.dtype

        def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
            seen.append(batch.num_decodes)
            return forward(batch, cache)

    driver = Driver(Watched(), 0, accelerator, sizes=(4, 1, 2))
    # Prompts from large to small, decodes likewise, each size before any was captured; the last is that of `open`.
    assert seen == [0] * 10 + [6, 5, 4, 3, 2, 1] + [4, 2, 1] + [4, 4, 2, 2, 1, 1] + [1]
    assert len(set(map(id, accelerator.pools))) == 1
    assert len(accelerator.graphs) == 3
    assert driver.executor._steps is not None


@pytest.mark.parametrize(
    ("rows", "padding", "figure"),
    [
        (1, 0, "graph_steps"),
        (3, 0, "graph_steps"),
        (3, 1, "graph_steps"),
        (3, 2, "eager_steps.size"),
        (5, 0, "eager_steps.size"),
    ],
)
def test_the_next_larger_size_runs_and_the_rest_says_why_not(
    model: Model, rows: int, padding: int, figure: str
) -> None:
    accelerator = FakeAccelerator()
    driver = Driver(model, 0, accelerator, sizes=SIZES)
    started = start_rows(driver, rows)
    assert started.extra == {"eager_steps.prefill": 1}
    again = decode_plan(rows, padding)
    result = driver.executor.collect(driver.executor.launch(again))
    assert result.extra == {figure: 1}
    replays = [
        graph.replays - 1 for graph in accelerator.graphs
    ]  # of sizes 4, 2, 1, besides that of the capture
    expected = {1: [0, 0, 1], 3: [1, 0, 0]}.get(rows, [0, 0, 0])
    assert replays == (expected if figure == "graph_steps" else [0, 0, 0])


class Hasty(FakeAccelerator):
    """Gives the same staging memory out again while copies from it are under way."""

    memory = torch.zeros(4096, dtype=torch.int32)

    def staging(self, count: int) -> torch.Tensor:
        return self.memory[:count]


@pytest.mark.parametrize("sizes", [(), SIZES])
def test_memory_under_a_copy_is_left_alone(model: Model, sizes: tuple[int, ...]) -> None:
    """With two steps on their way, as in the overlapped loop; and the stand-in for a device would tell."""
    driver = Driver(model, 0, FakeAccelerator(), sizes=sizes)
    start_rows(driver, 3)
    launched = [driver.executor.launch(decode_plan(3, start=start)) for start in (3, 4)]
    assert [len(driver.executor.collect(step).tokens) for step in launched] == [3, 3]
    with pytest.raises(AssertionError, match="changed under a copy"):
        Driver(model, 0, Hasty(), sizes=sizes)


def test_results_are_read_when_they_have_come(model: Model) -> None:
    driver = Driver(model, 0, FakeAccelerator(), sizes=SIZES)
    start_rows(driver, 3)
    running = driver.executor.launch(decode_plan(3))
    assert isinstance(running.step, DeviceStep)
    assert (running.step.drawn < 0).all()
    assert (driver.executor.collect(running).tokens > 0).all()


def test_without_graphs_every_step_says_so(model: Model) -> None:
    driver = Driver(model, 0, FakeAccelerator())
    assert start_rows(driver, 2).extra == {"eager_steps.off": 1}


def start_rows(driver: Driver, rows: int) -> Any:
    """A prompt of three tokens in each of the first rows, in the block of the same number."""
    numbers = int32(range(rows))
    plan = StepPlan(
        0, numbers, numbers * 0, numbers * 0 + 3, np.ones(rows, bool), 0,
        added=tuple(NewRow(r, str(r), int32([5 + r, 6, 7]), 3, GREEDY) for r in range(rows)),
        table_rows=numbers, table_indices=numbers * 0, table_blocks=numbers + 10,
    )  # fmt: skip
    return driver.executor.collect(driver.executor.launch(plan))


def decode_plan(rows: int, padding: int = 0, start: int = 3) -> StepPlan:
    numbers = int32(range(rows))
    return StepPlan(
        1, numbers, numbers * 0 + start, numbers * 0 + 1, np.ones(rows, bool), rows, padding=padding
    )


def test_padding_touches_nothing_that_anyone_reads(model: Model) -> None:
    """Cache, rows and tables after a padded graph are those after an eager step of the same rows."""

    def after(sizes: tuple[int, ...]) -> list[torch.Tensor]:
        driver = Driver(model, 0, FakeAccelerator(), sizes=sizes)
        executor = driver.executor
        for layer in (*executor._cache.k, *executor._cache.v):
            layer.fill_(7.0)
        start_rows(driver, 3)
        executor.collect(executor.launch(decode_plan(3)))
        state = executor._rows
        return [*executor._cache.k, *executor._cache.v, state.tokens[:ROWS], state.tables[:ROWS]]

    for padded, exact in zip(after((4,)), after(()), strict=True):
        assert torch.equal(padded, exact)


def test_a_row_whose_logits_are_not_numbers_fails_alone(model: Model) -> None:
    forward = model.forward

    class Poisoned:
        shape, device, dtype = model.shape, model.device, model.dtype

        def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
            logits = forward(batch, cache).clone()
            logits[1:2] = float("nan")
            return logits

    for sizes in ((), (4,)):
        driver = Driver(Poisoned(), 0, FakeAccelerator(), sizes=sizes)
        start_rows(driver, 3)
        result = driver.executor.collect(driver.executor.launch(decode_plan(3)))
        assert list(result.failed) == [1]
        assert "not finite" in result.failed[1]
        assert result.tokens[1] == 0
        assert (result.tokens[[0, 2]] > 0).all()


def test_a_row_with_every_token_forbidden_fails_alone(model: Model) -> None:
    everything = replace(GREEDY, logit_bias=dict.fromkeys(range(384), -float("inf")))
    driver = Driver(model, 0, FakeAccelerator())
    plan = StepPlan(
        0, int32([0, 1]), int32([0, 0]), int32([3, 3]), np.ones(2, bool), 0,
        added=(NewRow(0, "a", int32([5, 6, 7]), 3, everything), NewRow(1, "b", int32([5, 6, 7]), 3, GREEDY)),
        table_rows=int32([0, 1]), table_indices=int32([0, 0]), table_blocks=int32([0, 1]),
    )  # fmt: skip
    result = driver.executor.collect(driver.executor.launch(plan))
    assert list(result.failed) == [0]
    assert "forbidden" in result.failed[0]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_both_ways_gather_the_same_batch(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    starts = data.draw(st.lists(st.integers(0, 60), min_size=len(counts), max_size=len(counts)))
    rows = data.draw(st.permutations(range(6)))[: len(counts)]
    padding = data.draw(st.sampled_from([0, 1, 9]))
    plan = StepPlan(
        0,
        int32(rows),
        int32(starts),
        int32(counts),
        np.array([c % 2 == 0 for c in counts]),
        0,
        padding=padding,
    )
    states = [RowState(6, 100, 8, CPU), RowState(6, 100, 8, CPU, FakeAccelerator())]
    for state in states:
        state.tokens[:] = torch.arange(state.tokens.numel()).view_as(state.tokens)
        state.tables[:] = torch.arange(state.tables.numel()).view_as(state.tables).flip(0)
    host, device = (state.batch(plan, np.array([0], dtype=np.int64)) for state in states)
    for name in ForwardBatch.__slots__:
        mine, theirs = getattr(device, name), getattr(host, name)
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs, name
        assert not isinstance(mine, torch.Tensor) or mine.dtype == theirs.dtype, name


def test_parts_are_sent_aligned() -> None:
    state = RowState(2, 10, 4, CPU, FakeAccelerator())
    parts = state.send(int32([1, 2, 3]), int32([]), int32([4, 5, 6, 7, 8]))
    assert [part.tolist() for part in parts] == [[1, 2, 3], [], [4, 5, 6, 7, 8]]
    assert all(part.storage_offset() % 4 == 0 for part in parts)


def test_sizes_are_looked_up_among_captured_ones(model: Model) -> None:
    executor = Driver(model, 0, FakeAccelerator(), (2, 5)).executor
    assert executor._steps is not None
    graphs = executor._steps.graphs
    assert isinstance(graphs, DecodeGraphs)
    assert [graphs.size_for(n) for n in (1, 2, 3, 5, 6)] == [2, 2, 5, 5, None]


@pytest.mark.parametrize("blocks", [60, 14])
def test_prompt_logprobs_come_once_each_in_both_loops(
    model: Model, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the cache is so small that requests are evicted while their scores are on the way."""
    forward, most = model.forward, 0

    def wanted_once(batch: ForwardBatch, cache: PagedCache) -> torch.Tensor:
        nonlocal most
        wanted = batch.logit_indices.tolist()
        assert len(set(wanted)) == len(wanted) <= len(batch.tokens)
        most = max(most, len(wanted))
        return forward(batch, cache)

    monkeypatch.setattr(model, "forward", wanted_once)

    def serve(overlap: bool) -> tuple[dict[int, list[Any]], int]:
        limits = Limits(
            num_blocks=blocks, block_size=8, max_num_seqs=6, max_model_len=96, max_num_batched_tokens=24
        )
        config = ServeConfig(
            model="m",
            max_num_batched_tokens=24,
            enable_prefix_caching=True,
            async_scheduling=overlap,
            long_prefill_token_threshold=0,
            max_wait_s=120.0,
            scheduler_reserve_full_isl=False,
        )
        executor = TorchExecutor.of(Loaded(model, limits), FakeAccelerator())
        engine = Engine(config, executor, load_policy("continuous-chunked"))
        engine.open()
        rng = np.random.default_rng(2)
        seen: dict[int, list[Any]] = {}
        for handle in range(6):
            params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, prompt_logprobs=1)
            prompt = rng.integers(0, 250, 30 + 5 * handle).astype(np.int32)
            engine.add(Request(f"r{handle}", prompt, params, 0.0, handle=handle))
            seen[handle] = []
        for _ in range(2000):
            for output in engine.step():
                seen[output.handle] += [(p.token_ids, p.rank) for p in output.prompt_logprobs or ()]
        assert not engine.has_work
        return seen, engine.scheduler.preemptions

    plain, _ = serve(False)
    overlapped, evictions = serve(True)
    assert [len(plain[handle]) for handle in range(6)] == [29 + 5 * handle for handle in range(6)]
    assert overlapped == plain
    assert most > 6  # more than are drawn for
    assert bool(evictions) == (blocks == 14)

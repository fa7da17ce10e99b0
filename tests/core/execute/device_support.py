"""A scheduler's stand-in that plans at random, and a GPU's stand-in on the CPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from camshaft.core.execute.limits import Limits, Loaded
from camshaft.core.execute.torch_executor import TorchExecutor
from camshaft.core.model.base import Model
from camshaft.core.request import Logprob, SamplingParams
from camshaft.core.schedule.plan import NewRow, StepPlan

BLOCK, ROWS, LENGTH, BLOCKS = 8, 6, 256, 160


def int32(values) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


@dataclass
class Running:
    """One request as the driver below sees it."""

    prompt: list[int]
    params: SamplingParams
    row: int = -1
    computed: int = 0
    told_blocks: int = 0
    blocks: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: list[Logprob] = field(default_factory=list)

    @property
    def known(self) -> list[int]:
        return self.prompt + self.drawn

    @property
    def done(self) -> bool:
        return len(self.drawn) >= self.params.max_tokens


class Driver:
    """Plans steps at the whim of a random generator: what runs, in which chunks, who is evicted, with what padding."""

    def __init__(
        self,
        model: Model,
        seed: int,
        accelerator: FakeAccelerator | None = None,
        sizes: tuple[int, ...] = (),
        max_num_batched_tokens: int = 400,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        limits = Limits(
            num_blocks=BLOCKS,
            block_size=BLOCK,
            max_num_seqs=ROWS,
            max_model_len=LENGTH,
            capture_sizes=sizes,
            max_num_batched_tokens=max_num_batched_tokens,
            cache_dtype=cache_dtype,
        )
        self.executor = TorchExecutor.of(Loaded(model, limits), accelerator)
        self.figures: dict[str, int] = {}
        self.capacity = self.executor.open()
        self.random = np.random.default_rng(seed)
        self.free = self.random.permutation(BLOCKS).tolist()
        self.free_rows = list(range(ROWS))
        self.removed: list[int] = []
        self.step = 0

    def run(
        self, requests: list[Running], evictions: float = 0.0, padding: int = 0, whole: bool = False
    ) -> None:
        running: list[Running] = []
        waiting = list(requests)
        while waiting or running:
            added = []
            while waiting and self.free_rows and (whole or not running or self.random.random() < 0.6):
                request = waiting.pop(0)
                request.row = self.free_rows.pop()
                running.append(request)
                added.append(self._new(request))
            self._step(running, tuple(added), padding, whole)
            for request in list(running):
                evicted = self.random.random() < evictions
                if request.done or evicted:
                    running.remove(request)
                    self._release(request)
                    if not request.done:
                        waiting.append(request)

    def _new(self, request: Running) -> NewRow:
        name = str(id(request))
        length, scored = len(request.prompt), len(request.prompt_logprobs)
        return NewRow(request.row, name, int32(request.known), length, request.params, scored)

    def _release(self, request: Running) -> None:
        self.free += request.blocks
        self.removed.append(request.row)
        self.free_rows.append(request.row)
        request.blocks, request.computed, request.told_blocks = [], 0, 0

    def _step(self, running: list[Running], added: tuple[NewRow, ...], padding: int, whole: bool) -> None:
        decodes, prefills = [], []
        for request in running:
            left = len(request.known) - request.computed
            if left == 1 and request.drawn:
                decodes.append((request, 1))
            elif whole or self.random.random() < 0.7 or request is running[0]:
                prefills.append((request, left if whole else int(self.random.integers(1, left + 1))))
        entries = decodes + prefills
        table = []
        for request, count in entries:
            while len(request.blocks) * BLOCK < request.computed + count:
                request.blocks.append(self.free.pop())
            for i in range(request.told_blocks, len(request.blocks)):
                table.append((request.row, i, request.blocks[i]))
            request.told_blocks = len(request.blocks)
        changes = int32(table).reshape(-1, 3)
        plan = StepPlan(
            step=self.step,
            rows=int32([request.row for request, _ in entries]),
            starts=int32([request.computed for request, _ in entries]),
            num_tokens=int32([count for _, count in entries]),
            samples=np.array([r.computed + count == len(r.known) for r, count in entries], dtype=bool),
            num_decodes=len(decodes),
            added=added,
            removed=int32(self.removed),
            table_rows=changes[:, 0],
            table_indices=changes[:, 1],
            table_blocks=changes[:, 2],
            padding=padding,
        )
        self.removed = []
        self.step += 1
        result = self.executor.collect(self.executor.launch(plan))
        assert result.step == plan.step
        assert result.rows.tolist() == plan.rows[plan.samples].tolist()
        assert result.tokens.dtype == np.int32
        assert not result.failed
        for name, count in result.extra.items():
            self.figures[name] = self.figures.get(name, 0) + count
        by_row = {request.row: request for request in running}
        for request, count in entries:
            request.computed += count
        for row, positions in result.prompt_logprobs.items():
            by_row[row].prompt_logprobs += positions
        for row, token in zip(result.rows.tolist(), result.tokens.tolist(), strict=True):
            by_row[row].drawn.append(token)
            if row in result.logprobs:
                by_row[row].logprobs.append(result.logprobs[row])


class FakeGraph:
    """Runs the recorded work again; the tensors it was recorded on say on what."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._run()


class FakeEvent:
    """Copies arrive when it is waited for, those before it alone."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._recorded: int | None = None

    def record(self) -> None:
        self._recorded = self._copies.count

    def synchronize(self) -> None:
        assert self._recorded is not None
        self._copies.arrive(self._recorded)


class Copies:
    """Copies between host and device, each under way until something waits for it.

    What a copy reads is fixed by its place in the queue, so a source that changes meanwhile is a fault, and what
    it writes on the host is wrong until it has arrived.
    """

    def __init__(self) -> None:
        self.count = 0
        self._to_device: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self._to_host: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def to_device(self, staged: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self._to_device.append((self.count, staged, staged.clone()))
        return staged.clone()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.count += 1
        host = torch.full_like(tensor, float("nan") if tensor.is_floating_point() else -(2**31) + 7)
        self._to_host.append((self.count, host, tensor.clone()))
        return host

    def arrive(self, until: int) -> None:
        for number, staged, sent in self._to_device:
            assert number > until or torch.equal(staged, sent), "host memory was changed under a copy"
        for number, host, wanted in self._to_host:
            if number <= until:
                host.numpy()[...] = wanted.numpy()  # whatever mode it was made in
        self._to_device = [copy for copy in self._to_device if copy[0] > until]
        self._to_host = [copy for copy in self._to_host if copy[0] > until]


class FakeAccelerator:
    """A device whose tensors lie on the CPU. `graph_bytes` are taken by each capture."""

    def __init__(self, total_bytes: int = 0, graph_bytes: int = 0) -> None:
        self.total_bytes, self.graph_bytes = total_bytes, graph_bytes
        self.graphs: list[FakeGraph] = []
        self.pools: list[object] = []
        self.released = 0
        self.held = self.peak = 0
        self.copies = Copies()

    def allocated_bytes(self) -> int:
        return self.held

    def peak_bytes(self) -> int:
        return self.peak

    def reset_peak(self) -> None:
        self.peak = self.held

    def used_bytes(self) -> int:
        return self.held + self.graph_bytes * len(self.graphs)

    def release_cached(self) -> None:
        self.released += 1

    def synchronize(self) -> None:
        self.copies.arrive(self.copies.count)

    def event(self) -> FakeEvent:
        return FakeEvent(self.copies)

    def staging(self, count: int) -> torch.Tensor:
        return torch.full((count,), -77, dtype=torch.int32)

    def to_device(self, staged: torch.Tensor) -> torch.Tensor:
        return self.copies.to_device(staged)

    def fill(self, target: torch.Tensor, staged: torch.Tensor) -> None:
        target.copy_(self.copies.to_device(staged))

    def send(self, array: np.ndarray) -> torch.Tensor:
        return self.copies.to_device(torch.from_numpy(array.copy()))

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.copies.to_host(tensor)

    def new_pool(self) -> object:
        return object()

    def capture(self, run: Callable[[], None], pool: object) -> FakeGraph:
        run()
        self.graphs.append(FakeGraph(run))
        self.pools.append(pool)
        return self.graphs[-1]

    def why_no_graph(self, run: Callable[[], None]) -> str | None:
        with Waits() as waits:
            run()
        return ", ".join(sorted(waits.found)) or None


ASKING = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "bincount"}
)


def waits_in(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a GPU's host waits in an operator: for a value, or for how many there are."""
    name = func.overloadpacket.__name__
    indices = args[1] if name in ("index", "index_put", "index_put_") else ()
    masks = any(index is not None and index.dtype == torch.bool for index in indices)
    return name in ASKING or masks or (name == "repeat_interleave" and kwargs.get("output_size") is None)


class Waits(TorchDispatchMode):
    """Notes operators that a GPU's host waits in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        if waits_in(func, args, kwargs):
            callers = [Path(frame.filename) for frame in traceback.extract_stack()]
            if not any("kernels" in caller.parts for caller in callers):  # plain torch, not what a GPU runs
                self.found.add(func.overloadpacket.__name__)
        return func(*args, **kwargs)

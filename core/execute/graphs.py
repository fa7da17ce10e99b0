"""Decode steps as captured graphs: one launch instead of hundreds, whatever the lengths.

A graph holds a whole decode step of one batch size: gathering tokens from rows, the forward pass, the draw, and
the drawn token's place behind its row. A smaller batch runs in the next larger graph. Its padding has no
context, no slot in the cache and the row that is nobody's, so it changes nothing that anyone reads.

A step with a prompt in it is not captured. Its 230 launches (32 layers) take the host some six milliseconds, in which
the device is busy with the step before. From 8B in 16 bits on an H100 the weights alone take that long; in FP8, a step
of few prompt tokens beside short contexts is over in four, and the device then waits for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from ...kernels.prepare_batch import prepare_batch
from ..model.base import Model
from ..model.batch import ForwardBatch, PagedCache
from ..sample.on_device import DeviceSampler
from ..schedule.plan import StepPlan
from .accelerator import Accelerator, Graph
from .rows import RowState


class DecodeGraphs:
    """Captured decode steps by batch size. Empty until `capture`.

    logits: float32 [largest size, vocab] and drawn: int64 [largest size] hold the last step's; the next one
    overwrites them.
    """

    def __init__(
        self,
        model: Model,
        cache: PagedCache,
        rows: RowState,
        sampler: DeviceSampler,
        accelerator: Accelerator,
        sizes: tuple[int, ...],
    ) -> None:
        self.sizes = tuple(sorted(set(sizes)))
        self._model, self._cache, self._rows = model, cache, rows
        self._sampler, self._accelerator = sampler, accelerator
        self._graphs: dict[int, Graph] = {}
        largest = self.sizes[-1] if self.sizes else 0
        # Query starts, rows, positions and context lengths, each at a multiple of 16 bytes.
        self._width = -(-(largest + 1) // 4) * 4
        self._sent = torch.zeros((4, self._width), dtype=torch.int32, device=rows.device)
        self._sent[1] = rows.nobody
        self._every = torch.arange(largest, device=rows.device)
        self._counts = np.arange(self._width, dtype=np.int32)
        self.logits = torch.zeros((largest, model.shape.vocab_size), device=rows.device)
        self.drawn = torch.zeros(largest, dtype=torch.int64, device=rows.device)

    @property
    def buffer_bytes(self) -> int:
        """What the tensors take that all sizes share."""
        return sum(t.numel() * t.itemsize for t in (self._sent, self._every, self.logits, self.drawn))

    @torch.inference_mode()
    def warm(self) -> None:
        """Runs every size once, so that kernels are compiled and have their scratch before a graph points at it."""
        for size in reversed(self.sizes):
            self._step(size)
        self._accelerator.synchronize()

    @torch.inference_mode()
    def why_none(self) -> str | None:
        """What in the steps no graph can hold; None where one can."""
        for size in self.sizes:
            step = partial(self._step, size)
            step()  # compiles, and fills what is looked up but once
            if reason := self._accelerator.why_no_graph(step):
                return reason
        return None

    @torch.inference_mode()
    def capture(self, after_each: Callable[[], object] = lambda: None) -> None:
        """Captures every size, largest first: what it leaves in the pool is enough for those that follow.

        Each is replayed once, of padding alone: a graph takes memory, and its time, when it is first started.
        """
        pool = self._accelerator.new_pool()
        for size in reversed(self.sizes):
            self._graphs[size] = self._accelerator.capture(partial(self._step, size), pool)
            self._graphs[size].replay()
            after_each()
        self._accelerator.synchronize()

    def size_for(self, count: int) -> int | None:
        """The smallest captured size that holds `count` sequences; None if none does."""
        return next((size for size in self.sizes if size >= count and size in self._graphs), None)

    def run(self, plan: StepPlan, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Starts a step of decodes alone: its logits [n, vocab] and drawn tokens [n], already in their rows."""
        count = len(plan.rows)
        staged = self._accelerator.staging(4 * self._width)
        fields = staged.numpy().reshape(4, self._width)
        fields[0] = np.minimum(self._counts, count)
        fields[1:, count:] = np.array([[self._rows.nobody], [0], [0]])
        fields[1, :count], fields[2, :count] = plan.rows, plan.starts
        np.add(plan.starts, 1, out=fields[3, :count])
        self._accelerator.fill(self._sent, staged.view(4, self._width))
        self._graphs[size].replay()
        return self.logits[:count], self.drawn[:count]

    def _step(self, size: int) -> None:
        """The work that a graph holds: reads and writes tensors that stay where they are, and nothing else."""
        state = self._rows
        query_starts = self._sent[0, : size + 1]
        rows, starts, contexts = self._sent[1, :size], self._sent[2, :size], self._sent[3, :size]
        tokens, positions, slots = prepare_batch(
            state.tokens, state.tables, rows, starts, query_starts, state.block_size, size
        )
        batch = ForwardBatch(
            tokens=tokens,
            positions=positions,
            slots=slots,
            query_starts=query_starts,
            context_lens=contexts,
            block_tables=state.tables.index_select(0, rows),
            logit_indices=self._every[:size],
            num_decodes=size,
            max_query_len=1,
            max_context_len=state.tables.shape[1] * state.block_size,
            logits_out=self.logits[:size],
        )
        logits = self._model.forward(batch, self._cache)
        drawn = self.drawn[:size].copy_(self._sampler.draw(logits, rows, contexts))
        state.tokens[rows.long(), contexts.long()] = drawn.clamp_min(0)

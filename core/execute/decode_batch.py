"""Steps of decodes alone on a host: the tensors of their batches stay where they are, so a pass over them can be recorded."""

from __future__ import annotations

import numpy as np
import torch

from ..model.batch import ForwardBatch
from ..schedule.plan import StepPlan


class DecodeBatches:
    """Gathers batches from rows; a batch's tensors hold until the next one is gathered."""

    def __init__(self, tokens: torch.Tensor, tables: torch.Tensor, block_size: int) -> None:
        """Of `RowState`, on the CPU: int64 [rows, max_tokens] and int32 [rows, max_blocks]."""
        rows = len(tokens)
        self._known, self._blocks, self._block_size = tokens.numpy(), tables.numpy(), block_size
        self._tokens, self._positions, self._slots = torch.zeros((3, rows), dtype=torch.int64).unbind(0)
        self._contexts = torch.zeros(rows, dtype=torch.int32)
        self._tables = torch.zeros_like(tables)
        self._every = torch.arange(rows + 1)
        self._starts = self._every.int()
        self._batches: dict[int, ForwardBatch] = {}

    def gather(self, plan: StepPlan) -> ForwardBatch:
        """The batch of a plan in which every sequence decodes, without padding."""
        count, positions = len(plan.rows), plan.starts
        batch = self._batches.get(count) or self._batches.setdefault(count, self._first(count))
        index, offset = np.divmod(positions, self._block_size)
        reached = int(index.max(initial=0)) + 1
        blocks = self._tables.numpy()
        blocks[:count, :reached] = self._blocks[plan.rows, :reached]
        self._tokens.numpy()[:count] = self._known[plan.rows, positions]
        self._positions.numpy()[:count] = positions
        slots = self._slots.numpy()
        slots[:count] = blocks[np.arange(count), index]
        slots[:count] *= self._block_size
        slots[:count] += offset
        contexts = self._contexts.numpy()
        np.add(positions, 1, out=contexts[:count])
        batch.max_context_len = int(contexts[:count].max(initial=1))
        return batch

    def _first(self, count: int) -> ForwardBatch:
        """A batch of the first `count` places."""
        return ForwardBatch(
            tokens=self._tokens[:count],
            positions=self._positions[:count],
            slots=self._slots[:count],
            query_starts=self._starts[: count + 1],
            context_lens=self._contexts[:count],
            block_tables=self._tables[:count],
            logit_indices=self._every[:count],
            num_decodes=count,
            max_query_len=1,
            max_context_len=1,
            decodes_only=True,
        )

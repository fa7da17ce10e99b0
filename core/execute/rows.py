"""What the device keeps of every row, and how a step's batch is gathered from it without a loop over rows."""

from __future__ import annotations

import numpy as np
import torch

from ..model.batch import ForwardBatch
from ..schedule.plan import StepPlan


class RowState:
    """Known tokens and block table of each permanent row, on the device.

    tokens: int64 [rows, max_model_len + 1]; tables: int32 [rows, max_blocks].
    """

    def __init__(self, rows: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.block_size, self.device = block_size, device
        self.tokens = torch.zeros((rows, max_model_len + 1), dtype=torch.int64, device=device)
        blocks = -(-max_model_len // block_size)
        self.tables = torch.zeros((rows, blocks), dtype=torch.int32, device=device)

    def apply(self, plan: StepPlan) -> None:
        """Takes over the plan's new rows and block-table differences."""
        for new in plan.added:
            self.tokens[new.row, : len(new.tokens)] = self._send(new.tokens.astype(np.int64))
        if len(plan.table_rows):
            where = self._send(np.stack([plan.table_rows, plan.table_indices]).astype(np.int64))
            self.tables[where[0], where[1]] = self._send(plan.table_blocks.astype(np.int32))

    def batch(self, plan: StepPlan, extra: np.ndarray) -> ForwardBatch:
        """The tensors of a step; `extra` are further token indices whose logits are wanted."""
        lengths = plan.num_tokens.astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        total = int(starts[-1])
        token_rows = np.repeat(plan.rows.astype(np.int64), lengths)
        positions = np.arange(total) + np.repeat(plan.starts - starts[:-1], lengths)
        wanted = np.concatenate([starts[1:][plan.samples] - 1, extra])
        contexts = plan.starts + lengths
        flat = self._send(np.concatenate([token_rows, positions, wanted]))
        rows_d, positions_d, wanted_d = flat.split([total, total, len(wanted)])
        small = self._send(np.concatenate([starts, contexts, plan.rows]).astype(np.int32))
        starts_d, contexts_d, plan_rows = small.split([len(starts), len(contexts), len(contexts)])
        max_context = int(contexts.max(initial=1))
        tokens = self.tokens[rows_d, positions_d]
        blocks = self.tables[rows_d, positions_d // self.block_size]
        slots = blocks.long() * self.block_size + positions_d % self.block_size
        if plan.padding:
            tokens = torch.cat([tokens, tokens.new_zeros(plan.padding)])
            positions_d = torch.cat([positions_d, positions_d.new_zeros(plan.padding)])
            slots = torch.cat([slots, slots.new_full((plan.padding,), -1)])
        return ForwardBatch(
            tokens=tokens,
            positions=positions_d,
            slots=slots,
            query_starts=starts_d,
            context_lens=contexts_d,
            block_tables=self.tables[plan_rows.long(), : -(-max_context // self.block_size)],
            logit_indices=wanted_d,
            num_decodes=plan.num_decodes,
            max_query_len=int(lengths.max(initial=1)),
            max_context_len=max_context,
        )

    def append(self, plan: StepPlan, drawn: torch.Tensor) -> None:
        """Writes the drawn tokens behind the known ones of their rows; int64 [samples]."""
        if not len(drawn):
            return
        chosen = plan.samples
        where = self._send(np.stack([plan.rows, plan.starts + plan.num_tokens])[:, chosen].astype(np.int64))
        self.tokens[where[0], where[1]] = drawn

    def _send(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

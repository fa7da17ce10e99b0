"""What the device keeps of every row, and how a step's batch is gathered from it without a loop over rows."""

from __future__ import annotations

import numpy as np
import torch

from ...kernels.prepare_batch import prepare_batch
from ..model.batch import ForwardBatch
from ..schedule.plan import StepPlan
from .accelerator import Accelerator
from .decode_batch import DecodeBatches


class RowState:
    """Known tokens and block table of each permanent row, on the device.

    tokens: int64 [rows + 1, max_model_len + 1]; tables: int32 [rows + 1, max_blocks]. The last row is nobody's:
    what padding writes goes there. (`core.arithmetic.memory.row_state_bytes` counts them.)
    """

    def __init__(
        self,
        rows: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.block_size, self.device, self.accelerator = block_size, device, accelerator
        self.nobody = rows
        self.tokens = torch.zeros((rows + 1, max_model_len + 1), dtype=torch.int64, device=device)
        blocks = -(-max_model_len // block_size)
        self.tables = torch.zeros((rows + 1, blocks), dtype=torch.int32, device=device)
        self._decodes = None
        if accelerator is None and device.type == "cpu":
            self._decodes = DecodeBatches(self.tokens, self.tables, block_size)

    def apply(self, plan: StepPlan) -> None:
        """Takes over the plan's new rows and block-table differences."""
        for new in plan.added:
            self.tokens[new.row, : len(new.tokens)] = self.send(new.tokens)[0]
        if len(plan.table_rows):
            rows, indices, blocks = self.send(plan.table_rows, plan.table_indices, plan.table_blocks)
            self.tables[rows.long(), indices.long()] = blocks

    def batch(self, plan: StepPlan, extra: np.ndarray) -> ForwardBatch:
        """The tensors of a step; `extra` are further token indices whose logits are wanted."""
        if self._decodes is None:
            return self._gathered(plan, extra)
        if plan.num_decodes == len(plan.rows) and not plan.padding and not len(extra):
            return self._decodes.gather(plan)
        lengths = plan.num_tokens.astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        total = int(starts[-1])
        token_rows = np.repeat(plan.rows.astype(np.int64), lengths)
        positions = np.arange(total) + np.repeat(plan.starts - starts[:-1], lengths)
        wanted = np.concatenate([starts[1:][plan.samples] - 1, extra])
        contexts = plan.starts + lengths
        flat = torch.from_numpy(np.concatenate([token_rows, positions, wanted]))
        rows_d, positions_d, wanted_d = flat.split([total, total, len(wanted)])
        small = torch.from_numpy(np.concatenate([starts, contexts, plan.rows]).astype(np.int32))
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

    def _gathered(self, plan: StepPlan, extra: np.ndarray) -> ForwardBatch:
        """The same with one copy to the device, where the rest is gathered."""
        ends = np.concatenate([[0], np.cumsum(plan.num_tokens)])
        contexts = plan.starts + plan.num_tokens
        wanted = np.concatenate([ends[1:][plan.samples] - 1, extra])
        ends_d, contexts_d, rows_d, starts_d, wanted_d = self.send(
            ends, contexts, plan.rows, plan.starts, wanted
        )
        tokens, positions, slots = prepare_batch(
            self.tokens,
            self.tables,
            rows_d,
            starts_d,
            ends_d,
            self.block_size,
            int(ends[-1]) + plan.padding,
        )
        max_context = int(contexts.max(initial=1))
        reached = -(-max_context // self.block_size)
        return ForwardBatch(
            tokens=tokens,
            positions=positions,
            slots=slots,
            query_starts=ends_d,
            context_lens=contexts_d,
            block_tables=self.tables[:, :reached].index_select(0, rows_d),
            logit_indices=wanted_d.long(),
            num_decodes=plan.num_decodes,
            max_query_len=int(plan.num_tokens.max(initial=1)),
            max_context_len=max_context,
        )

    def append(self, plan: StepPlan, drawn: torch.Tensor) -> None:
        """Writes the drawn tokens behind the known ones of their rows; integers [samples]."""
        if not len(drawn):
            return
        chosen = plan.samples
        if self._decodes is not None:
            places = (plan.starts + plan.num_tokens)[chosen]
            self.tokens.numpy()[plan.rows[chosen], places] = drawn.numpy()
            return
        rows, places = self.send(plan.rows[chosen], (plan.starts + plan.num_tokens)[chosen])
        self.tokens[rows.long(), places.long()] = drawn.long()

    def send(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """int32, as `arrays`, on the device by one copy that the host does not wait for."""
        if self.accelerator is None:
            return [torch.from_numpy(array.astype(np.int32, copy=False)).to(self.device) for array in arrays]
        # Each begins at a multiple of 16 bytes: kernels are compiled anew for pointers that do not.
        sizes = [-(-array.size // 4) * 4 for array in arrays]
        staged = self.accelerator.staging(sum(sizes))
        filled, begin = staged.numpy(), 0
        for array, size in zip(arrays, sizes, strict=True):
            filled[begin : begin + array.size] = array
            begin += size
        parts = self.accelerator.to_device(staged).split(sizes)
        return [part[: array.size] for part, array in zip(parts, arrays, strict=True)]

"""Plain torch, any device."""

from __future__ import annotations

import torch


def prepare_batch(
    known: torch.Tensor,
    tables: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    query_starts: torch.Tensor,
    block_size: int,
    made: torch.Tensor,
) -> None:
    """made: int64 [3, num_tokens]."""
    at = torch.arange(made.shape[1], device=known.device)
    sequence = (torch.searchsorted(query_starts.long(), at, right=True) - 1).clamp_max(len(rows) - 1)
    padding = at >= query_starts[-1]
    row = rows.long()[sequence]
    positions = (starts.long()[sequence] + at - query_starts.long()[sequence]).masked_fill(padding, 0)
    blocks = tables[row, positions // block_size].long()
    made[0] = known[row, positions].masked_fill(padding, 0)
    made[1] = positions
    made[2] = (blocks * block_size + positions % block_size).masked_fill(padding, -1)

"""Tokens, positions and cache slots of a step, gathered on the device from what it keeps of every row."""

from __future__ import annotations

import torch

from ..checks import KernelInputError, check_size
from ..dispatch import Dispatch

_best = Dispatch(__name__, "prepare_batch")


def prepare_batch(
    known: torch.Tensor,
    tables: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    query_starts: torch.Tensor,
    block_size: int,
    num_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens, positions, slots), int64 [num_tokens] each.

    known: int64 [permanent rows, any], each row's tokens by position; tables: int32 [permanent rows, blocks];
    rows, starts: int32 [n], a sequence's permanent row and the position of its first token in this step;
    query_starts: int32 [n + 1]. Token t of sequence i is at position starts[i] + t - query_starts[i].
    Tokens from query_starts[n] on are padding: token 0, position 0, slot -1. Nothing waits for the device.
    Raises KernelInputError, a ValueError that names the argument.
    """
    check_size("prepare_batch", "starts", starts, (len(rows),))
    check_size("prepare_batch", "query_starts", query_starts, (len(rows) + 1,))
    if tables.shape[0] != known.shape[0]:
        raise KernelInputError(
            "prepare_batch", "tables", f"has {tables.shape[0]} rows, known has {known.shape[0]}"
        )
    made = torch.empty((3, num_tokens), dtype=torch.int64, device=known.device)
    _best(known)(known, tables, rows, starts, query_starts, block_size, made)
    return made[0], made[1], made[2]

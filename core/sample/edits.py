"""A batch of changes to single logits: which row, which token, what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .ops import Send, stay

Edit = tuple[int, np.ndarray]  # index of a row of the logits, int64 token ids


def positions(edits: Sequence[Edit], send: Send) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, ids), int64 [total]: index tensors over every edit."""
    sizes = [len(ids) for _, ids in edits]
    rows = np.repeat(np.asarray([index for index, _ in edits], dtype=np.int64), sizes)
    ids = np.concatenate([ids for _, ids in edits])
    return send(rows), send(ids)


def forbid(logits: torch.Tensor, edits: Sequence[Edit], send: Send = stay) -> None:
    """Sets the logits of tokens to minus infinity, in place."""
    if edits:
        logits[positions(edits, send)] = -float("inf")


def keep_only(logits: torch.Tensor, edits: Sequence[Edit], send: Send = stay) -> None:
    """Sets the logits of all other tokens to minus infinity, in place."""
    if edits:
        at = positions(edits, send)
        kept = logits[at]
        logits[send(np.asarray([index for index, _ in edits], dtype=np.int64))] = -float("inf")
        logits[at] = kept


def token_ids(ids: Sequence[int], vocab: int) -> np.ndarray:
    """int64: the distinct ids that the vocabulary has."""
    found = np.unique(np.asarray(ids, dtype=np.int64))
    return found[(found >= 0) & (found < vocab)]

"""Operations for which numpy is faster than torch on the host; log-probabilities are told of a device's logits too.

On a CPU with AVX-512 numpy's argmax, partition and sort are vectorised and torch's are not: at 32 rows of
49,152 on one thread argmax takes 0.3 ms against 5 to 7, the 256 largest 6 to 9 against 14 to 15, a full
sort 16 against 250.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

Send = Callable[[np.ndarray], torch.Tensor]  # a copy where the logits are, which the host does not wait for


def _by_numpy(logits: torch.Tensor) -> bool:
    return logits.device.type == "cpu"


def stay(array: np.ndarray) -> torch.Tensor:
    """`Send` for logits on the host: the array's own memory."""
    return torch.from_numpy(np.ascontiguousarray(array))


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """int64 [m]: the first index of each row's largest value (of a NaN, if it has one)."""
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def all_finite(logits: torch.Tensor, tokens: torch.Tensor) -> bool:
    """Whether the values [m, vocab] of these tokens [m], one a row, are all finite numbers; on the CPU."""
    return bool(np.isfinite(logits.numpy()[np.arange(len(tokens)), tokens.numpy()]).all())


def largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """float32 [m, min(count, vocab)]: each row's largest values, in descending order."""
    size = logits.shape[-1]
    values = logits.numpy()
    if count < size:
        values = np.partition(values, size - count, axis=-1)[:, size - count :]
    return torch.from_numpy(np.sort(values, axis=-1)[:, ::-1].copy())


def largest_ids(logits: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [m, min(count, vocab)]: where each row's largest values stand, in descending order of value."""
    size = logits.shape[-1]
    count = min(count, size)
    if not _by_numpy(logits) or count == 0:
        return torch.topk(logits, count, dim=-1).indices
    values = logits.numpy()
    ids = np.sort(np.argpartition(values, size - count, axis=-1)[:, size - count :], axis=-1)
    order = np.argsort(-np.take_along_axis(values, ids, axis=-1), axis=-1, kind="stable")
    return torch.from_numpy(np.take_along_axis(ids, order, axis=-1))


def count_greater(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """int64 [m]: how many elements of each row exceed `values` [m]."""
    if not _by_numpy(logits):
        return (logits > values[:, None]).sum(-1)
    return torch.from_numpy(np.count_nonzero(logits.numpy() > values.numpy()[:, None], axis=-1))


def nth_equal(logits: torch.Tensor, values: torch.Tensor, nth: torch.Tensor) -> torch.Tensor:
    """int64 [m]: the index of the `nth` (from 0) element of each row that equals `values` [m] exactly."""
    rows, wanted, skip = logits.numpy(), values.numpy(), nth.numpy()
    found = [np.flatnonzero(rows[i] == wanted[i])[skip[i]] for i in range(len(rows))]
    return torch.from_numpy(np.asarray(found, dtype=np.int64))

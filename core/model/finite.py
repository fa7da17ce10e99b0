"""Weights that are no numbers: one ruins every answer, so a model that holds one is refused where it is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from ..errors import ModelError

if TYPE_CHECKING:
    from .loading import FileWeights


def may_be_damaged(tensor: torch.Tensor) -> bool:
    """Whether values of a tensor are to be summed up: floating point that knows NaN or infinity in every type."""
    return tensor.is_floating_point() and tensor.dtype.itemsize > 1


def all_finite(sums: Iterable[torch.Tensor]) -> bool:
    """Of tensors' sums, with one wait for the device. Finite numbers may have an infinite sum, never the reverse."""
    stacked = list(sums)
    return not stacked or bool(torch.stack(stacked).isfinite().all())


def total(tensor: torch.Tensor) -> torch.Tensor:
    """float32 sum; NaN or infinite if an element is."""
    return tensor.sum(dtype=torch.float32)


def require_finite(source: FileWeights, name: str) -> None:
    """Raises ModelError with file and tensor if the tensor holds NaN or infinity."""
    tensor = source.get(name)
    if not may_be_damaged(tensor):
        return
    wrong = ~tensor.isfinite()
    if bool(wrong.any()):
        first = tuple(int(index) for index in wrong.nonzero()[0])
        raise ModelError(
            f"{source.file_of(name)}: tensor {name!r} holds NaN or infinity at {first} "
            f"and {int(wrong.sum()) - 1} more places; the file is damaged, fetch the model again"
        )

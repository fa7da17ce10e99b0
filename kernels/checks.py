"""Refuses tensors that a GPU kernel would misread: a typed error that names op and argument."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from .fp8 import FP8

INTEGERS = (torch.int32,)
LONGS = (torch.int64,)
HALVES = (torch.bfloat16, torch.float16, torch.float32)
NARROW = (FP8,)
CACHES = (*HALVES, *NARROW)
SINGLES = (torch.float32,)


class KernelInputError(ValueError):
    """An argument on the wrong device, of the wrong dtype or stride, or out of range."""

    def __init__(self, op: str, argument: str, problem: str) -> None:
        super().__init__(f"{op}: {argument} {problem}")
        self.op, self.argument = op, argument


class _Debug:
    on = False


def debugging() -> bool:
    """Whether values are checked as well, which waits for the device at every call."""
    return _Debug.on


@contextmanager
def debug(on: bool = True):
    """Within it, block tables and slots are checked against the cache before every launch."""
    before, _Debug.on = _Debug.on, on
    try:
        yield
    finally:
        _Debug.on = before


def check_tensor(
    op: str,
    name: str,
    tensor: torch.Tensor,
    device: torch.device,
    dtypes: tuple[torch.dtype, ...],
    *,
    whole: bool = False,
) -> None:
    """Device, dtype and stride: elements of a row side by side; all of it contiguous when `whole`."""
    if tensor.device != device:
        raise KernelInputError(op, name, f"is on {tensor.device}, the other arguments are on {device}")
    if tensor.dtype not in dtypes:
        raise KernelInputError(op, name, f"is {tensor.dtype}; allowed: {', '.join(map(str, dtypes))}")
    if whole and not tensor.is_contiguous():
        raise KernelInputError(
            op, name, f"of size {tuple(tensor.shape)} is not contiguous: {tensor.stride()}"
        )
    if tensor.ndim and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelInputError(op, name, f"has elements {tensor.stride(-1)} apart within a row")


def check_tables(
    op: str, tables: torch.Tensor, contexts: torch.Tensor, block_size: int, num_blocks: int
) -> None:
    """Every block that a context reaches is one of the cache's. Waits for the device."""
    needed = (contexts.long() + block_size - 1) // block_size
    if len(needed) and int(needed.max()) > tables.shape[1]:
        raise KernelInputError(op, "context_lens", f"reach {int(needed.max())} blocks of {tables.shape[1]}")
    used = torch.arange(tables.shape[1], device=tables.device) < needed[:, None]
    wrong = torch.nonzero(used & ((tables < 0) | (tables >= num_blocks)))
    if len(wrong):
        i, j = wrong[0].tolist()
        raise KernelInputError(
            op, "block_tables", f"[{i}, {j}] is {int(tables[i, j])}; the cache has {num_blocks} blocks"
        )


def check_range(op: str, name: str, tensor: torch.Tensor, low: int, end: int) -> None:
    """Every number is one of low..end - 1. Waits for the device."""
    wrong = torch.nonzero((tensor < low) | (tensor >= end))
    if len(wrong):
        at = wrong[0].tolist()
        value = int(tensor[tuple(at)])
        raise KernelInputError(op, name, f"{at} is {value}, must be {low} or more and below {end}")


def check_size(op: str, name: str, tensor: torch.Tensor, size: tuple[int, ...]) -> None:
    """Exactly this size."""
    if tuple(tensor.shape) != size:
        raise KernelInputError(op, name, f"is {tuple(tensor.shape)}, must be {size}")

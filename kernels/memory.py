"""Memory for what a step reads from end to end: on large pages where the system has them.

With pages of 4 KiB a walk through the page tables is due for every 64 cache lines, and hardware
prefetchers stop at each boundary.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import torch

LARGE_PAGE_BYTES = 2 << 20
CHUNK_BYTES = 64 << 20
_ALIGN_FLOATS = 16  # one cache line


def ask_for_large_pages(tensor: torch.Tensor) -> None:
    """Advises the system to back a CPU tensor that nothing has written yet; does nothing where it cannot."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    size = tensor.untyped_storage().nbytes()
    begin = -(-tensor.untyped_storage().data_ptr() // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    length = (tensor.untyped_storage().data_ptr() + size - begin) // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES
    if advice is not None and madvise is not None and length > 0:
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), ctypes.c_int(advice))


class Arena:
    """Hands out pieces of chunks on large pages. A chunk is freed with the last tensor that lies in it."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0)
        self._used = 0

    def empty(self, *size: int) -> torch.Tensor:
        """A contiguous float32 tensor with undefined contents, at the beginning of a cache line."""
        count = torch.Size(size).numel()
        if count * 4 > CHUNK_BYTES // 4:
            alone = torch.empty(size)
            ask_for_large_pages(alone)
            return alone
        if self._used + count > self._chunk.numel():
            self._chunk = torch.empty(CHUNK_BYTES // 4)
            ask_for_large_pages(self._chunk)
            self._used = 0
        piece = self._chunk[self._used : self._used + count].view(size)
        self._used += -(-count // _ALIGN_FLOATS) * _ALIGN_FLOATS
        return piece


WEIGHTS = Arena()


class DeviceScratch:
    """Memory of a GPU that calls share, zero at first, so that a step allocates nothing. What it has outgrown is kept: a
    captured graph may still write to it.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self._dtype = dtype
        self._memory: dict[torch.device, list[torch.Tensor]] = {}

    def __call__(self, device: torch.device, size: int) -> torch.Tensor:
        """At least `size` numbers on the device, the same ones until more are asked for."""
        held = self._memory.setdefault(device, [])
        if not held or held[-1].numel() < size:
            held.append(torch.zeros(size, dtype=self._dtype, device=device))
        return held[-1]


class Scratch:
    """Memory that calls share, zero at first. What it has outgrown is kept, at most as much again: recorded
    programs point at it.
    """

    def __init__(self) -> None:
        self._memory: list[np.ndarray] = []  # NumPy's, so that taking it is no work of torch's
        self._floats = self._address = 0

    def address(self, floats: int) -> int:
        """Address of room for so many float32."""
        if floats > self._floats:
            self._floats = max(floats, 2 * self._floats)
            self._memory.append(np.zeros(self._floats, dtype=np.float32))
            self._address = self._memory[-1].ctypes.data
        return self._address

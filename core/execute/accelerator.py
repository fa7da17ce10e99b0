"""The parts of a GPU that the executor uses besides tensors: memory figures, events, staging memory, captured graphs.

A test stands in for it with an object of its own, so that everything above runs without a GPU.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch


class Graph(Protocol):
    """Device work recorded once."""

    def replay(self) -> None:
        """Starts the work again, on whatever the tensors that it was recorded on hold now."""
        ...


class Event(Protocol):
    """A point in the device's queue."""

    def record(self) -> None: ...

    def synchronize(self) -> None:
        """Waits until the device has come to the point."""
        ...


class Accelerator(Protocol):
    """One device, by its figures in bytes and by what it can do that tensors cannot say."""

    def allocated_bytes(self) -> int:
        """Held by live tensors."""
        ...

    def peak_bytes(self) -> int:
        """The most that live tensors held since `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...

    def used_bytes(self) -> int:
        """Taken from the device by anyone: tensors, unused pages of the allocator, code, other processes."""
        ...

    def release_cached(self) -> None:
        """Gives pages that no tensor uses back to the device."""
        ...

    def synchronize(self) -> None:
        """Waits for the device."""
        ...

    def event(self) -> Event: ...

    def staging(self, count: int) -> torch.Tensor:
        """int32 [count] of host memory that the device can copy from without the host's help."""
        ...

    def to_device(self, staged: torch.Tensor) -> torch.Tensor:
        """A copy of staging memory on the device, under way: who wrote the memory may drop it, not change it."""
        ...

    def fill(self, target: torch.Tensor, staged: torch.Tensor) -> None:
        """The same into a tensor of the device."""
        ...

    def send(self, array: np.ndarray) -> torch.Tensor:
        """A copy of the array as it is now on the device, under way."""
        ...

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory, complete when the device has come to an event recorded later."""
        ...

    def new_pool(self) -> Any:
        """A memory pool for graphs that never run at the same time."""
        ...

    def capture(self, run: Callable[[], None], pool: Any) -> Graph:
        """Records the device work of `run`, which must not wait for the device."""
        ...

    def why_no_graph(self, run: Callable[[], None]) -> str | None:
        """What in the work of `run`, which is done now, no graph can hold; None where one can hold all of it."""
        ...


class Cuda:
    """Implements `Accelerator` by torch, whose host allocator gives pinned memory out again only when the copies
    from it and to it are done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def release_cached(self) -> None:
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def event(self) -> Event:
        return torch.cuda.Event()

    def staging(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int32, pin_memory=True)

    def to_device(self, staged: torch.Tensor) -> torch.Tensor:
        return staged.to(self._device, non_blocking=True)

    def fill(self, target: torch.Tensor, staged: torch.Tensor) -> None:
        target.copy_(staged, non_blocking=True)

    def send(self, array: np.ndarray) -> torch.Tensor:
        # Not from the array's own memory, which the driver may read after this has returned.
        return self.to_device(torch.from_numpy(np.ascontiguousarray(array)).pin_memory())

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu", non_blocking=True)  # into pinned memory

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], None], pool: Any) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # Thread-local: other threads may query free memory without breaking the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            run()
        return graph

    def why_no_graph(self, run: Callable[[], None]) -> str | None:
        pool = self.new_pool()
        # Asked before it is captured: a capture that meets a wait leaves more behind than an error.
        with warnings.catch_warnings(action="ignore"):  # of what it may not detect
            torch.cuda.set_sync_debug_mode("error")
        try:
            run()
            torch.cuda.set_sync_debug_mode("default")
            # To the current stream a failed capture returns.
            with torch.cuda.stream(torch.cuda.current_stream(self._device)):
                self.capture(run, pool)
        except RuntimeError as error:
            self._abandon(pool)
            if out_of_memory_reason(error) is not None:
                raise
            # The end of a capture complains of an error before it.
            while isinstance(error.__context__, RuntimeError):
                error = error.__context__
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{str(error).partition(chr(10))[0]} ({Path(place.filename).name}:{place.lineno})"
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return None

    def _abandon(self, pool: Any) -> None:
        """Tells the allocator that a capture into `pool` is over, which torch itself does not where it has failed:
        the pool would keep its memory, and other captures would ask a graph that is gone (`CUDAGraph::capture_end`).
        """
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with contextlib.suppress(RuntimeError):  # it had ended, or not begun
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)


def accelerator_of(device: torch.device) -> Accelerator | None:
    """None where the device is the host itself."""
    return Cuda(device) if device.type == "cuda" else None


class CatchOutOfMemory:
    """Ends a `with` block at the error of a device without enough memory, and keeps nothing of it but `reason`.

    Whoever refuses does so behind the block: an error raised inside holds, by its context, the frames of the first
    one and so the tensors of what failed.
    """

    reason: str | None = None

    def __enter__(self) -> CatchOutOfMemory:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, RuntimeError | MemoryError):
            self.reason = out_of_memory_reason(error)
        return self.reason is not None


def out_of_memory_reason(error: RuntimeError | MemoryError) -> str | None:
    """What of a device's memory was asked for in vain, in a line; None for an error of another kind.

    torch's allocator has a type of its own for it; that of a host, kernels that load their code and cuBLAS say it
    in words. Where a graph was being captured, the end of the capture complains last, of an error before it.
    """
    line = str(error).partition("\n")[0].rstrip(".")
    words = ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(said in line for said in words):
        return line or "no memory is left"
    earlier = error.__context__
    return out_of_memory_reason(earlier) if isinstance(earlier, RuntimeError) else None

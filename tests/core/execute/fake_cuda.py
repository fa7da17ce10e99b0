"""A CUDA device on the CPU: tensors that say they lie on `cuda:0`, and hold torch to what holds there.

Their numbers are real, and computed by torch on the CPU. An operator over tensors of both places raises, one that a
GPU's host waits in is noted, and what a copy brings to the host is wrong until an event behind it was waited for. A
captured graph is the work that was recorded, without the Python around it. A kernel's launch is checked, and then its
reference computes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_support import Copies, FakeEvent, waits_in
from hopper_products import HOPPERS
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime import jit
from variants import Variants, function_of

from camshaft.core.model import fallback
from camshaft.kernels import launch
from camshaft.kernels.dispatch import Dispatch
from camshaft.kernels.linear import fp8
from camshaft.kernels.linear.fastest import Fastest
from camshaft.kernels.linear.fp8_product import triton as fp8_product
from camshaft.kernels.paged_attention import triton as attention

HERE = torch.device("cuda:0")
MEMORY = 128 << 30
PROPERTIES = SimpleNamespace(name="fake", uuid="0", major=9, minor=0, multi_processor_count=132)
MOST_PROGRAMS = (2**31 - 1, 65535, 65535)  # of a grid (CUDA programming guide, "Compute capabilities")
SCALARS = ("full", "scalar_tensor")  # that torch makes beside a tensor, where it sees it lie


class OnDevice(torch.Tensor):
    """A tensor of the device; `held` is its memory."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        with no_dispatch(), torch.inference_mode(False):
            like = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device="meta")
            # To torch's own eyes on no device that needs a driver.
            made = torch.Tensor._make_subclass(cls, like, False, device_for_backend_keys=HERE)  # type: ignore[call-arg]
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda self: HERE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the device's `with` block")

    def __getitem__(self, at: Any) -> torch.Tensor:
        parts = at if isinstance(at, tuple) else (at,)
        return super().__getitem__(
            tuple(torch.tensor(part).to(HERE) if isinstance(part, list) else part for part in parts)
        )

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("a tensor of cuda:0 is no array of the host")

    def __repr__(self, **_: Any) -> str:
        return f"cuda:0 {self.dtype} {tuple(self.shape)}"


def each(x: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same with every tensor in it changed: in lists, tuples, dictionaries and data classes."""
    if isinstance(x, torch.Tensor):
        return change(x)
    if isinstance(x, list | tuple):
        return type(x)(each(y, change) for y in x)
    if isinstance(x, dict):
        return {key: each(y, change) for key, y in x.items()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(
            x, **{f.name: each(getattr(x, f.name), change) for f in dataclasses.fields(x)}
        )
    return x


def held(x: torch.Tensor) -> torch.Tensor:
    """Its memory if it is one of the device."""
    return x.held if isinstance(x, OnDevice) else x


def tensors_in(x: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    each(x, found.append)
    return found


def place_of(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


class FakeGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []
        # Memory by its address, and what it held.
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.taken: list[weakref.ref[torch.Tensor]] = []  # in memory of its own
        self.left: list[str] = []  # of these, what outlived the capture
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with no_dispatch(), torch.inference_mode():
            for again in self.work:
                again()


class Event(FakeEvent):
    """Stands for `torch.cuda.Event`."""

    def __init__(self, gpu: FakeCuda) -> None:
        super().__init__(gpu.copies)
        self._gpu = gpu

    def synchronize(self) -> None:
        self._gpu.forbid_in_capture("an event's synchronize")
        super().synchronize()

    def elapsed_time(self, later: Event) -> float:
        return 1.0


class FakeCuda(TorchDispatchMode):
    """The device, within a `with` block. `waits` names what its host has waited in."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.copies = Copies()
        self.graphs: list[FakeGraph] = []
        self._forbids_waits = False
        self._pinned: dict[int, torch.Tensor] = {}
        self._capture: FakeGraph | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = tensors_in((args, kwargs))
        mine = [x for x in tensors if isinstance(x, OnDevice)]
        name, device = func.overloadpacket.__name__, kwargs.get("device")
        if device is not None and (
            device.type == "cuda" or (device.type == "meta" and (mine or name in SCALARS))
        ):
            device = kwargs["device"] = HERE
        if not mine and device != HERE:
            return self._on_host(func, args, kwargs)
        if name != "where":  # whose scalars would become tensors of the device that torch sees
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if name in ("_to_copy", "copy_"):
            return self._copied(func, args, kwargs)
        if waits_in(func, args, kwargs):
            self.wait(name)
        if len(mine) < len(tensors):
            raise RuntimeError(
                f"{func}: tensors on cuda:0 and on the CPU, {[tuple(x.shape) for x in tensors]}"
            )
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        return self.compute(HOPPERS.get(name, func), args, kwargs)

    def compute(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What `func` makes of the memory of its arguments; a graph being captured will do it again."""
        mine = {id(x.held): x for x in tensors_in((args, kwargs)) if isinstance(x, OnDevice)}
        args, kwargs = each((args, kwargs), held)
        if self._capture is not None:
            for memory in (x.held.untyped_storage() for x in mine.values()):
                if memory.data_ptr() not in self._capture.before:
                    self._capture.before[memory.data_ptr()] = memory, memory.clone()
        with no_dispatch():
            made = func(*args, **kwargs)
        given = {place_of(x.held) for x in mine.values()}
        out = each(made, lambda x: mine[id(x)] if id(x) in mine else OnDevice(x))
        if self._capture is not None:
            own = [place_of(x) not in given for x in tensors_in(made)]

            def again() -> None:
                for is_own, before, now in zip(
                    own, tensors_in(made), tensors_in(func(*args, **kwargs)), strict=True
                ):
                    if is_own:
                        before.copy_(now)

            self._capture.work.append(again)
            self._capture.taken += [
                weakref.ref(x) for is_own, x in zip(own, tensors_in(out), strict=True) if is_own
            ]
        return out

    def wait(self, what: str) -> None:
        """The host waits for the device."""
        self.waits.append(what)
        if self._forbids_waits or self._capture is not None:
            raise RuntimeError(f"the host waits for the device: {what}")

    def _on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        pinned = kwargs.pop("pin_memory", False)
        if func.overloadpacket.__name__ in ("pin_memory", "_pin_memory"):
            func, pinned = torch.ops.aten.clone.default, True
        made = func(*args, **kwargs)
        if pinned:
            self._pinned[place_of(made)] = made
        return made

    def _copied(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`_to_copy` and `copy_`, within the device or from one place to the other."""
        later = kwargs.pop("non_blocking", False) or args[2:] == (True,)
        source, target = args[1::-1] if len(args) > 1 else (args[0], None)
        device = kwargs.pop("device", source.device)
        to_device = device.type == "cuda" if target is None else isinstance(target, OnDevice)
        if not to_device:
            if later and target is None:
                return self.copies.to_host(func(source.held, **kwargs))
            self.wait("copy to the host")
            return func(source.held, **kwargs) if target is None else target.copy_(source.held)
        if isinstance(source, OnDevice):
            return self.compute(func, args[:2], kwargs)
        if not later or place_of(source) not in self._pinned:
            self.wait("copy of memory that is not pinned")
        if target is None:
            return self.compute(lambda: func(self.copies.to_device(source), **kwargs), (), {})
        return self.compute(lambda to: to.copy_(self.copies.to_device(source)), (target,), {})

    @contextlib.contextmanager
    def captured(self, graph: FakeGraph, **_: Any) -> Iterator[None]:
        """Stands for `torch.cuda.graph`."""
        self.graphs.append(graph)
        self._capture = graph
        try:
            yield
        finally:
            self._capture = None
            for memory, before in graph.before.values():  # nothing runs before the graph does
                memory.copy_(before)
            graph.before.clear()
            gc.collect()
            graph.left = [repr(x) for ref in graph.taken if (x := ref()) is not None]

    def forbid_waits(self, mode: str) -> None:
        """Stands for `torch.cuda.set_sync_debug_mode`."""
        self._forbids_waits = mode == "error"

    def event(self, enable_timing: bool = False) -> Event:
        return Event(self)

    def synchronize(self, device: object = None) -> None:
        self.forbid_in_capture("synchronize")
        self.copies.arrive(self.copies.count)

    def forbid_in_capture(self, what: str) -> None:
        if self._capture is not None:
            raise RuntimeError(f"{what} is not permitted when stream is capturing")

    def is_capturing(self) -> bool:
        return self._capture is not None

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Puts the device where torch, Triton and the choice of kernels look for one."""
        nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        for name, stand_in in {
            "_lazy_init": nothing, "_sleep": nothing, "empty_cache": nothing, "reset_peak_memory_stats": nothing,
            "memory_allocated": lambda *_: 0, "max_memory_allocated": lambda *_: 0,
            "mem_get_info": lambda *_: (MEMORY, MEMORY), "is_available": lambda: True, "current_device": lambda: 0,
            "get_device_capability": lambda *_: (9, 0),
            "get_device_properties": lambda *_: PROPERTIES, "device_count": lambda: 1,
            "graph_pool_handle": lambda: (0, 1), "CUDAGraph": FakeGraph, "graph": self.captured, "Event": self.event,
            "synchronize": self.synchronize, "set_sync_debug_mode": self.forbid_waits,
            "is_current_stream_capturing": self.is_capturing, "current_stream": nothing,
            "stream": lambda _: contextlib.nullcontext(),
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, name, stand_in)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            patch.setattr(torch._C, name, nothing)
        made = torch.tensor

        def tensor(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:  # of which no mode is told
            if torch.device(device or "cpu") != HERE:
                return made(*args, device=device, **kwargs)
            return made(*args, **kwargs).to(HERE)

        load = fallback._load

        def load_on_host(*args: Any) -> Any:
            # What has no memory yet is not the device's.
            with _disable_current_modes(), pytest.MonkeyPatch.context() as inner:
                inner.setattr(torch, "tensor", made)
                return load(*args)

        patch.setattr(torch, "tensor", tensor)
        patch.setattr(fallback, "_load", load_on_host)
        patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
        # As in a process that begins: nothing is remembered, and no scratch taken.
        for name in ("num_sms", "capability"):
            patch.setattr(launch, name, functools.cache(getattr(launch, name).__wrapped__))
        for scratch in (attention._PARTIAL, attention._SUMS, fp8_product.PARTIAL, fp8_product.ARRIVED):
            patch.setattr(scratch, "_memory", {})
        patch.setattr(fp8, "_fastest", Fastest())
        self.launched = Variants()
        patch.setattr(
            jit.JITFunction, "run", lambda kernel, *args, **keys: self._launch(kernel, *args, **keys)
        )
        chosen = Dispatch.__call__
        patch.setattr(
            Dispatch, "__call__", lambda op, x: self._kernel(op) if isinstance(x, OnDevice) else chosen(op, x)
        )

    def _launch(self, kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
        check_launch(kernel, args, grid, kwargs)
        self.launched.record(kernel, args, kwargs)

    def _kernel(self, op: Dispatch) -> Callable[..., Any]:
        """Launches what a GPU would, then lets the reference compute."""
        reference, faster = function_of(op, op._otherwise), function_of(op, "triton")
        assert reference is not None
        if faster is None:
            return reference

        def both(*args: Any, **kwargs: Any) -> Any:
            made = faster(*args, **kwargs)
            if not op._name.startswith("make_"):
                return self.compute(reference, args, kwargs)
            with no_dispatch():
                layer = reference(*each(args, held), **kwargs)
            return Experts(self, made, layer)

        return both


class Experts:
    """Those of a GPU, whose launches compute nothing, and those of the reference."""

    def __init__(self, gpu: FakeCuda, mine: Any, reference: Any) -> None:
        self._gpu, self._mine, self._reference = gpu, mine, reference
        self.weight_bytes = mine.weight_bytes

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        self._mine(x, ids, weights, out.clone())
        return self._gpu.compute(self._reference, (x, ids, weights, out), {})


def check_launch(kernel: Any, args: tuple[Any, ...], grid: tuple[int, ...], options: dict[str, Any]) -> None:
    """What a driver or Triton would refuse."""
    assert 1 <= len(grid) <= 3, grid
    assert all(type(n) is int and 1 <= n <= most for n, most in zip(grid, MOST_PROGRAMS, strict=False)), grid
    warps = options.get("num_warps", 4)
    assert warps in (1, 2, 4, 8, 16, 32), warps
    for name, value in zip(kernel.arg_names, args, strict=False):
        if isinstance(value, torch.Tensor):
            assert isinstance(value, OnDevice), f"{kernel.__name__}: {name} is on {value.device}"
        else:
            assert value is None or type(value) in (int, float, bool), (kernel.__name__, name, value)
            assert type(value) is not int or abs(value) < 2**63, (kernel.__name__, name, value)

"""The machine a configuration is resolved for, as told or as found without importing torch."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...kernels.threads import usable_cores
from ..arithmetic.memory import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Facts of one device."""

    kind: Literal["cpu", "cuda"]
    name: str
    memory_bytes: int  # of the device: a GPU's memory, or what this process may use of the host's
    free_bytes: int | None = None  # of these, not used by others now
    count: int = 1  # GPUs, or cores this process may run on
    compute_capability: tuple[int, int] | None = None  # GPUs only

    def describe(self) -> str:
        """For messages: `NVIDIA H100 80GB HBM3, 79.2 GiB` or `a CPU with 2 cores, 15.6 GiB`."""
        gib = f"{self.memory_bytes / GIB:.1f} GiB"
        if self.kind == "cpu":
            return f"a CPU with {self.count} core{'s' if self.count > 1 else ''}, {gib}"
        return f"{self.name}, {gib}" + (f" x {self.count}" if self.count > 1 else "")


def find_hardware(device: str = "auto") -> Hardware | None:
    """The device that `device` (auto, cpu, cuda) means here; None for cuda where no GPU answers."""
    gpu = None if device == "cpu" else find_gpu()
    if gpu is not None or device == "cuda":
        return gpu
    return find_cpu()


def find_cpu() -> Hardware:
    """This machine's processor: the cores that kernels use, memory within the control group's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    usable = min(total, _cgroup_limit(total))
    return Hardware(
        kind="cpu",
        name="cpu",
        memory_bytes=usable,
        free_bytes=min(_available(usable), usable),
        count=usable_cores(),
    )


def _available(total: int) -> int:
    """Linux's own estimate of what can be allocated without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return total


def _cgroup_limit(total: int) -> int:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return total


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_v2_t, which tells what the driver keeps for itself apart from what is used."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]

    @classmethod
    def empty(cls) -> _NvmlMemory:
        return cls(version=ctypes.sizeof(cls) | 2 << 24)


def find_gpu(uuid: str | None = None) -> Hardware | None:
    """The first NVIDIA GPU that CUDA shows this process, or the one of this UUID, as the driver's management library
    describes it; None where there is none.

    The library counts GPUs in the order of their buses and CUDA, unless CUDA_DEVICE_ORDER says so too, the fastest
    first: among unlike GPUs only a UUID is sure.
    """
    try:
        nvml = _library()
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0 or count.value == 0:
            return None
        uuids = [_uuid(nvml, _handle(nvml, str(index))) for index in range(count.value)]
        shown = _shown(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        first = shown[:1] if uuid is None else _shown(f"GPU-{uuid.removeprefix('GPU-')}", uuids)
        device = _handle(nvml, first[0]) if first else None
        return None if device is None else _described(nvml, device, max(1, len(shown)))
    finally:
        nvml.nvmlShutdown()


def _library() -> Any:
    return ctypes.CDLL("libnvidia-ml.so.1")


def _shown(told: str | None, uuids: list[str]) -> list[str]:
    """Numbers of the GPUs, or names of the parts of GPUs, that CUDA shows (CUDA C++ programming guide,
    CUDA_VISIBLE_DEVICES): all unless told; a name that means none hides itself and those behind it. A UUID's
    beginning is enough if no other GPU's begins the same way.
    """
    if told is None:
        return [str(index) for index in range(len(uuids))]
    shown: list[str] = []
    for name in map(str.strip, told.split(",")):
        if name.startswith("GPU-"):
            meant = [str(index) for index, uuid in enumerate(uuids) if uuid.startswith(name)]
        else:
            meant = [name] if name.startswith("MIG-") or name in map(str, range(len(uuids))) else []
        if len(meant) != 1:
            break
        shown += meant
    return shown


def _handle(nvml: Any, name: str) -> Any:
    device = ctypes.c_void_p()
    if name.isdigit():
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(device))
    else:
        failed = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device))
    return None if failed else device


def _uuid(nvml: Any, device: Any) -> str:
    """Empty for a GPU that this process has no permission to query."""
    uuid = ctypes.create_string_buffer(96)
    if device is None or nvml.nvmlDeviceGetUUID(device, uuid, 96) != 0:
        return ""
    return uuid.value.decode(errors="replace")


def _described(nvml: Any, device: Any, count: int) -> Hardware | None:
    name, memory = ctypes.create_string_buffer(96), _NvmlMemory.empty()
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetName(device, name, 96)
    if nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)) != 0:
        return None
    nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    return Hardware(
        kind="cuda",
        name=name.value.decode(errors="replace"),
        memory_bytes=memory.total - memory.reserved,  # what CUDA calls the device's memory
        free_bytes=memory.free,
        count=count,
        compute_capability=(major.value, minor.value),
    )

"""The machine a configuration is resolved for, as told or as found without importing torch."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


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
        gib = f"{self.memory_bytes / (1 << 30):.1f} GiB"
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
    """This machine's processor: cores of the affinity mask, memory within the control group's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    usable = min(total, _cgroup_limit(total))
    return Hardware(
        kind="cpu", name="cpu", memory_bytes=usable, free_bytes=min(_available(usable), usable), count=cores
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
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def find_gpu() -> Hardware | None:
    """The first NVIDIA GPU as the driver's management library describes it; None where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0 or count.value == 0:
            return None
        if nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) != 0:
            return None
        name, memory = ctypes.create_string_buffer(96), _NvmlMemory()
        major, minor = ctypes.c_int(), ctypes.c_int()
        nvml.nvmlDeviceGetName(device, name, 96)
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
            return None
        nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
        return Hardware(
            kind="cuda",
            name=name.value.decode(errors="replace"),
            memory_bytes=memory.total,
            free_bytes=memory.free,
            count=count.value,
            compute_capability=(major.value, minor.value),
        )
    finally:
        nvml.nvmlShutdown()

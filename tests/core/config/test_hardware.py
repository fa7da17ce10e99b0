"""The GPU that a process sees, from the driver's management library, which a stand-in plays here."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from camshaft.core.config import hardware
from camshaft.core.config.hardware import find_gpu

GIB = 1 << 30


class Nvml:
    """Two GPUs, the second of them in use by somebody else."""

    used = (0, 60 * GIB)

    def __init__(self) -> None:
        self.open = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802 - the library's names
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:  # noqa: N802
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, device: Any) -> int:  # noqa: N802
        device._obj.value = 2
        return 0 if name == b"MIG-b" else 6

    def nvmlDeviceGetUUID(self, device: Any, uuid: Any, size: int) -> int:  # noqa: N802
        uuid.value = (b"GPU-1a2b-77", b"GPU-1c2b-77")[device.value - 1]
        return 0

    def nvmlDeviceGetName(self, device: Any, name: Any, size: int) -> int:  # noqa: N802
        name.value = f"GPU {device.value - 1}".encode()
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, device: Any, memory: Any) -> int:  # noqa: N802
        found, used = memory._obj, self.used[device.value - 1]
        if found.version != (2 << 24) + 40 or ctypes.sizeof(found) != 40:
            return 25
        found.total, found.reserved, found.used = 80 * GIB, GIB // 2, used
        found.free = 80 * GIB - GIB // 2 - used
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, device: Any, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 9, 0
        return 0


@pytest.mark.parametrize(
    ("visible", "name", "count"),
    [
        (None, "GPU 0", 2),
        ("1", "GPU 1", 1),
        ("1,0", "GPU 1", 2),
        ("GPU-1c2b-77", "GPU 1", 1),
        ("GPU-1c, 0", "GPU 1", 2),
        ("0,GPU-1,1", "GPU 0", 1),
        ("GPU-1", None, 0),
        ("MIG-b", "GPU 1", 1),
        ("0,7,1", "GPU 0", 1),
        ("", None, 0),
        ("-1", None, 0),
        ("GPU-unknown", None, 0),
    ],
)
def test_the_gpu_that_cuda_shows_is_the_one_described(
    visible: str | None, name: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml()
    monkeypatch.setattr(hardware, "_library", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = find_gpu()
    assert nvml.open == 0
    if name is None:
        assert found is None
        return
    assert found is not None
    assert (found.name, found.count, found.compute_capability) == (name, count, (9, 0))
    assert found.memory_bytes == 80 * GIB - GIB // 2
    used = 60 * GIB if name == "GPU 1" else 0
    assert found.free_bytes == found.memory_bytes - used


@pytest.mark.parametrize("uuid", ["1c2b-77", "GPU-1c2b-77"])
def test_a_gpu_is_found_by_its_uuid(uuid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_library", Nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = find_gpu(uuid)
    assert found is not None
    assert (found.name, found.count) == ("GPU 1", 2)
    assert find_gpu("2222") is None


def test_without_the_library_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(hardware, "_library", missing)
    assert find_gpu() is None

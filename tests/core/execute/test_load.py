"""The device that is loaded onto, which torch and the driver's library may number differently."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from camshaft.core.config.hardware import Hardware
from camshaft.core.execute import load
from camshaft.core.execute.load import hardware_of

GIB = 1 << 30


@pytest.mark.parametrize("known", [True, False])
def test_memory_is_that_of_the_gpu_that_torch_takes(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Hardware(kind="cuda", name="fast", memory_bytes=80 * GIB, free_bytes=79 * GIB, count=2)
    properties = SimpleNamespace(uuid="1c2b", name="part", major=9, minor=0)
    asked: list[str] = []

    def find(uuid: str) -> Hardware | None:
        asked.append(uuid)
        return driver if known else None

    monkeypatch.setattr(load, "find_gpu", find)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9 * GIB, 10 * GIB))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = hardware_of(torch.device("cuda"))
    assert asked == ["1c2b"]
    if known:
        assert found is driver
    else:
        assert (found.name, found.memory_bytes, found.free_bytes) == ("part", 10 * GIB, 9 * GIB)
        assert found.compute_capability == (9, 0)


def test_a_cpu_is_the_host() -> None:
    assert hardware_of(torch.device("cpu")).kind == "cpu"

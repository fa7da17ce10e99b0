"""Devices by the names people write."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.cost.devices import UnknownDevice, devices, find_device
from camshaft.diagnostics.cost.hardware import load_hardware


@pytest.mark.parametrize(
    ("written", "name", "capability"),
    [
        ("H100-80GB", "H100 SXM", 9.0),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 9.0),
        ("8xH100", "H100 SXM", 9.0),
        ("h200:8", "H200", 9.0),
        ("H100 NVL", "H100 NVL", 9.0),
        ("Tesla T4", "Tesla T4", 7.5),
        ("nvidia-tesla-t4", "Tesla T4", 7.5),
        ("RTX A6000", "RTX A6000", 8.6),
        ("A100-SXM4-40GB", "A100 40GB", 8.0),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM", 8.0),
        ("2 x A10G", "A10G", 8.6),
        ("L4", "L4", 8.9),
        ("L40S", "L40S", 8.9),
        ("V100-SXM2-16GB", "Tesla V100 16GB", 7.0),
        ("GB200", "GB200", 10.0),
        ("GB10", "GB10 (DGX Spark)", 12.1),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090", 8.9),
        ("RTX 3090 x2", "GeForce RTX 3090", 8.6),
        ("A100-PCIE-80GB", "A100 80GB PCIe", 8.0),
        ("A800 40GB", "A800 40GB", 8.0),
        ("H100 96GB", "H100 96GB", 9.0),
        ("H100 94GB", "H100 NVL", 9.0),
        ("GB300", "GB300", 10.3),
        ("B300 288GB", "B300", 10.3),
        ("RTX 6000 48GB", "RTX 6000 Ada", 8.9),
        ("Quadro RTX 6000", "Quadro RTX 6000", 7.5),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 8.9),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell", 12.0),
        ("MI300X", "MI300X", 0.0),
    ],
)
def test_found(written: str, name: str, capability: float) -> None:
    device = find_device(written)
    assert (device.name, device.compute_capability) == (name, capability)


@pytest.mark.parametrize("written", ["", "H1000", "gpu", "A", "100", "nvidia", "80GB"])
def test_anything_else_is_refused_with_the_nearest_names(written: str) -> None:
    with pytest.raises(UnknownDevice, match="unknown device") as error:
        find_device(written)
    assert "Nearest: " in str(error.value) or "config list gpus" in str(error.value)


def test_the_nearest_is_the_usual_size() -> None:
    with pytest.raises(UnknownDevice, match="Nearest: H100 SXM, "):
        find_device("H1000")


def test_the_table_is_sound() -> None:
    for device in devices():
        assert find_device(device.name) == device
        assert device.source
        assert (device.compute_capability > 0) == (device.platform == "cuda"), device.name
        same = [other for other in devices() if set(other.keys) & set(device.keys)]
        assert len(same) == 1 or any(other.usual or other.sheet for other in same), device.name


def test_no_name_means_two_devices() -> None:
    meant: dict[str, str] = {}
    for device in devices():
        assert (device.sheet is None) != bool(device.names), device.name
        for name in device.names:
            assert meant.setdefault(name, device.name) == device.name


WRITTEN = sorted(
    {name for device in devices() for name in (device.name, *device.keys, *device.names)}
    | {f"{key} {device.memory_gib:.0f}GB" for device in devices() for key in device.keys}
)


@pytest.mark.parametrize("written", WRITTEN)
def test_a_simulation_takes_the_device_that_the_checks_take(written: str) -> None:
    device = find_device(written)
    if device.sheet is None:
        with pytest.raises(EvidenceError, match=re.escape(f"{device.name}, of which there is no sheet")):
            load_hardware(written)
    else:
        sheet = load_hardware(written)
        assert (sheet.name, sheet.memory_gib) == (device.name, device.memory_gib)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_no_text_crashes_the_search(text: str) -> None:
    with contextlib.suppress(UnknownDevice):
        assert find_device(text) in devices()

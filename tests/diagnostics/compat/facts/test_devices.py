"""Devices by the names people write."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.diagnostics.compat.facts.devices import UnknownDevice, devices, find_device


@pytest.mark.parametrize(
    ("written", "name", "capability"),
    [
        ("H100-80GB", "H100 80GB", 9.0),
        ("NVIDIA H100 80GB HBM3", "H100 80GB", 9.0),
        ("8xH100", "H100 80GB", 9.0),
        ("h200:8", "H200 141GB", 9.0),
        ("H100 NVL", "H100 NVL 94GB", 9.0),
        ("Tesla T4", "Tesla T4", 7.5),
        ("nvidia-tesla-t4", "Tesla T4", 7.5),
        ("RTX A6000", "RTX A6000", 8.6),
        ("A100-SXM4-40GB", "A100 40GB", 8.0),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", 8.0),
        ("2 x A10G", "A10G", 8.6),
        ("L4", "L4", 8.9),
        ("L40S", "L40S", 8.9),
        ("V100-SXM2-16GB", "Tesla V100 16GB", 7.0),
        ("GB200", "GB200", 10.0),
        ("GB10", "GB10 (DGX Spark)", 12.1),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090", 8.9),
        ("RTX 3090 x2", "GeForce RTX 3090", 8.6),
        ("Quadro RTX 6000", "Quadro RTX 6000", 7.5),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 8.9),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell", 12.0),
        ("MI300X", "Instinct MI300X", 0.0),
    ],
)
def test_found(written: str, name: str, capability: float) -> None:
    device = find_device(written)
    assert (device.name, device.compute_capability) == (name, capability)


@pytest.mark.parametrize("written", ["", "H1000", "gpu", "A", "100", "nvidia", "80GB"])
def test_anything_else_is_refused_with_the_nearest_names(written: str) -> None:
    with pytest.raises(UnknownDevice, match="unknown device") as error:
        find_device(written)
    assert "Nearest: " in str(error.value) or "Known are" in str(error.value)


def test_the_table_is_sound() -> None:
    for device in devices():
        assert find_device(device.name).keys == device.keys, device.name
        assert device.source
        assert (device.compute_capability > 0) == (device.platform == "cuda"), device.name
        same = [other for other in devices() if set(other.keys) & set(device.keys)]
        assert len(same) == 1 or sum(other.usual for other in same) == 1, device.name


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_no_text_crashes_the_search(text: str) -> None:
    with contextlib.suppress(UnknownDevice):
        assert find_device(text) in devices()

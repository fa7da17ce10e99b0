"""Every shipped sheet is valid, has a source, and answers to its names."""

from __future__ import annotations

import re

import numpy as np
import pytest

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.cost.hardware import FOLDER, load_hardware, read_hardware


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_hardware_sheets_are_complete(name: str) -> None:
    sheet = load_hardware(name)
    assert sheet.source
    assert all(load_hardware(alias) == sheet for alias in (sheet.name, *sheet.aliases))
    for curve in sheet.gemm.values():
        assert np.shape(curve.efficiency_percent) == (len(curve.tokens), len(curve.n), len(curve.k))
    assert {"bfloat16", "fp8"} <= sheet.decode_attention.keys() & sheet.prefill_attention.keys()
    assert sheet.measured == (name in ("h100-sxm", "rtx-pro-6000") or sheet.device_type == "cpu")
    assert sheet.error_band.tpot_percent <= sheet.error_band.ttft_percent
    for section in (sheet.host, sheet.elementwise, sheet.error_band, *sheet.gemm.values()):
        assert section.source


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("H100-80GB", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("Tesla T4", "Tesla T4"),
        ("RTX A6000", "RTX A6000"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("A100", "A100 80GB SXM"),
        ("h200_sxm", "H200"),
        ("DGX Spark", "GB10 (DGX Spark)"),
        ("NVIDIA H800 80GB HBM3", "H800 SXM"),
        ("NVIDIA A800-SXM4-80GB", "A800 80GB SXM"),
    ],
)
def test_devices_answer_to_names_as_people_write_them(written: str, meant: str) -> None:
    assert load_hardware(written).name == meant


def test_an_unknown_device_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(EvidenceError, match="unknown device 'abacus 3000'"):
        load_hardware("abacus 3000")


def test_unknown_keys_of_a_sheet_are_refused(tmp_path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text((FOLDER / "h200.yaml").read_text() + "colour: green\n")
    with pytest.raises(EvidenceError, match="colour"):
        read_hardware(file)
    file.write_text("name: 2024-99-99")
    with pytest.raises(EvidenceError, match="not readable"):
        read_hardware(file)


@pytest.mark.parametrize("name", ["H1000", "B2000", "L400", "H100 MIG 1g.10gb", "my-h100", "4xH100"])
def test_a_name_that_only_contains_a_device_s_is_refused(name: str) -> None:
    with pytest.raises(EvidenceError, match=re.escape(repr(name))):
        load_hardware(name)


@pytest.mark.parametrize(
    "name", ["H100-80GB", "NVIDIA H100 80GB HBM3", "H100 SXM5", "nvidia h100", "NVIDIA H100 Tensor Core GPU"]
)
def test_what_people_add_to_a_device_s_name_is_no_matter(name: str) -> None:
    assert load_hardware(name).name == "H100 SXM"

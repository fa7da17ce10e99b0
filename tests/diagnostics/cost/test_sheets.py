"""Every shipped sheet is valid, has a source, and answers to its names."""

from __future__ import annotations

import pytest

from camshaft.core.errors import EvidenceError, ModelError
from camshaft.core.shape import parameter_count
from camshaft.diagnostics.cost.gemm import curve_is_complete
from camshaft.diagnostics.cost.hardware import FOLDER, hardware_names, load_hardware, read_hardware
from camshaft.diagnostics.cost.models import FOLDER as MODELS
from camshaft.diagnostics.cost.models import load_model, model_names, read_sheet


@pytest.mark.parametrize("name", hardware_names())
def test_hardware_sheets_are_complete(name: str) -> None:
    sheet = load_hardware(name)
    assert sheet.source
    assert all(load_hardware(alias) == sheet for alias in (sheet.name, *sheet.aliases))
    assert all(curve_is_complete(curve) for curve in sheet.gemm.values())
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
    ],
)
def test_devices_answer_to_names_as_people_write_them(written: str, meant: str) -> None:
    assert load_hardware(written).name == meant


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EvidenceError, match="h100-sxm"):
        load_hardware("abacus 3000")


def test_unknown_keys_of_a_sheet_are_refused(tmp_path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text((FOLDER / "h200.yaml").read_text() + "colour: green\n")
    with pytest.raises(EvidenceError, match="colour"):
        read_hardware(file)


@pytest.mark.parametrize("name", model_names())
def test_model_sheets_are_read_and_named(name: str) -> None:
    sheet, shape = read_sheet(MODELS / f"{name}.yaml"), load_model(name)
    assert sheet.source.startswith("config.json of ")
    assert parameter_count(shape) > 1e8
    assert all(load_model(alias).num_layers == shape.num_layers for alias in sheet.aliases)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 70.55, 70.55),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", 235.1, 22.2),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 12.9),
        ("openai/gpt-oss-120b", 116.8, 5.7),
        ("deepseek-ai/DeepSeek-V3", 671.0, 37.5),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.1345, 0.1345),
    ],
)
def test_shapes_give_the_published_sizes(name: str, billions: float, active: float) -> None:
    shape = load_model(name)
    assert parameter_count(shape) / 1e9 == pytest.approx(billions, rel=0.01)
    assert parameter_count(shape, active=True) / 1e9 == pytest.approx(active, rel=0.03)


def test_a_format_in_the_name_sets_the_quantisation() -> None:
    assert load_model("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic").quantization == "fp8"
    assert load_model("Qwen/Qwen2.5-32B-Instruct-AWQ").quantization == "awq"
    assert load_model("meta-llama/Llama-3.1-8B").quantization is None
    with pytest.raises(ModelError, match="no sheet"):
        load_model("nobody/knows-this-7b")

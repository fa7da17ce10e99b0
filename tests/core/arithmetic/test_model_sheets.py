"""Every model sheet is valid, has a source, answers to its names, and gives the published sizes."""

from __future__ import annotations

import pytest
from parameters import parameters

from camshaft.core.arithmetic.model_sheets import FOLDER, model_names, read_sheet, shape_named
from camshaft.core.config import find_shape
from camshaft.core.errors import ModelError


@pytest.mark.parametrize("name", model_names())
def test_model_sheets_are_read_and_named(name: str) -> None:
    sheet, shape = read_sheet(FOLDER / f"{name}.yaml"), shape_named(name)
    assert sheet.source.startswith("config.json of ")
    assert parameters(shape)[0] > 1e8
    assert all(shape_named(alias).num_layers == shape.num_layers for alias in sheet.aliases)


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
    total, passed = parameters(shape_named(name))
    assert total / 1e9 == pytest.approx(billions, rel=0.01)
    assert passed / 1e9 == pytest.approx(active, rel=0.03)


def test_a_format_in_the_name_sets_the_quantisation() -> None:
    assert shape_named("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic").quantization == "fp8"
    assert shape_named("Qwen/Qwen2.5-32B-Instruct-AWQ").quantization == "awq"
    assert shape_named("meta-llama/Llama-3.1-8B").quantization is None
    with pytest.raises(ModelError, match="no sheet"):
        shape_named("nobody/knows-this-7b")


def test_serving_knows_a_model_by_the_same_names_as_a_prediction() -> None:
    for name in ("meta-llama/Llama-3.3-70B-Instruct", "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"):
        assert find_shape(name) == shape_named(name)
    assert find_shape("nobody/knows-this-7b") is None

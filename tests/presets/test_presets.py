"""Presets are data with reasons: every file says in a comment what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import camshaft
from camshaft.core.config import load_config, preset_names
from camshaft.core.workload import workload_names
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.simulate.prepare import prepare

FOLDER = Path(camshaft.__file__).parent / "presets"


@pytest.mark.parametrize(
    "file",
    [
        *(FOLDER / "serving" / f"{name}.yaml" for name in preset_names()),
        *(FOLDER / "workloads" / f"{name}.yaml" for name in workload_names()),
    ],
    ids=lambda file: f"{file.parent.name}/{file.stem}",
)
def test_a_preset_begins_with_what_it_is_for(file: Path) -> None:
    assert file.read_text().startswith("# ")


@pytest.mark.parametrize("name", preset_names())
def test_a_serving_preset_names_model_and_device_and_no_policy(name: str) -> None:
    loaded = load_config(name, purpose="inspect")
    assert loaded.config.model
    assert loaded.config.device != "auto"
    assert "policy" not in loaded.entries
    assert not loaded.foreign


def test_the_cpu_presets_arithmetic_is_right() -> None:
    text = (FOLDER / "serving" / "cpu-demo.yaml").read_text()
    values = yaml.safe_load(text)
    per_token = 30 * 2 * 3 * 64 * 4
    assert per_token == 45 * 1024
    assert "46,603 tokens" in text
    assert (1 << 30) // per_token == 23_301
    assert (1 << 30) // per_token // values["max_model_len"] == 5


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "cpu-demo"])
def test_a_gpu_preset_holds_the_tokens_its_comment_says(name: str) -> None:
    text = " ".join(
        line.lstrip("# ") for line in (FOLDER / "serving" / f"{name}.yaml").read_text().split("\n")
    )
    said = re.search(
        r"([\d,.]+)( million)? tokens(?: of KV cache,| (?:of FP8 KV cache )?\()|hold ([\d,]+) tokens", text
    )
    assert said is not None, "the comment says how many tokens the cache holds"
    number = float((said[1] or said[3]).replace(",", "")) * (1e6 if said[2] else 1)
    gpu = {"h100": "H100", "h200": "H200", "a100": "A100 80GB"}[name.split("-")[0]]
    budget = prepare(load_config(name, purpose="inspect"), load_hardware(gpu)).budget
    assert budget.fits
    assert budget.kv_tokens == pytest.approx(number, rel=0.01)

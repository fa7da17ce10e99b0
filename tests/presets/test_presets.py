"""Presets are data with reasons: every file says in a comment what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

import camshaft
from camshaft.core.config import load_config, preset_names
from camshaft.core.workload import workload_names

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

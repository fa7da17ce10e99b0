"""`engine policies` says what there is and what it does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import Field

from camshaft.cli.main import main
from camshaft.policies import registry


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["policies", *arguments])


def test_list_names_every_policy_with_what_it_is() -> None:
    text = run("list").stdout
    listed = json.loads(run("list", "--format", "json").stdout)
    assert set(listed["policies"]) == set(registry.names())
    for name, description in listed["policies"].items():
        assert description
        assert f"{name} " in text


def test_parts_are_listed_with_their_parameters() -> None:
    catalogue = json.loads(run("list", "--parts", "--format", "json").stdout)
    assert {entry["name"] for entry in catalogue["order"]} >= {"fcfs", "priority", "fair_share"}
    adaptive = next(entry for entry in catalogue["chunking"] if entry["name"] == "adaptive")
    assert adaptive["parameters"]["itl_target_ms"]["what"]
    assert "itl_target_ms" in run("list", "--parts").stdout


def test_show_gives_every_parameter_in_force(tmp_path: Path) -> None:
    for name in registry.names():
        shown = json.loads(run("show", name, "--format", "json").stdout)
        assert shown["name"] == name
        assert shown["order"]["what"]
        assert name in run("show", name).stdout
    file = tmp_path / "mine.yaml"
    file.write_text("chunking: {name: adaptive, itl_target_ms: 12}\nknobs: {max_num_seqs: 3}\n")
    shown = json.loads(run("show", str(file), "--format", "json").stdout)
    assert shown["chunking"]["parameters"]["itl_target_ms"]["value"] == 12
    assert shown["knobs"] == {"max_num_seqs": 3}
    assert "max_num_seqs = 3" in run("show", str(file)).stdout


def test_the_example_of_a_file_is_one(tmp_path: Path) -> None:
    text = run("list", "--parts").stdout
    file = tmp_path / "quick.yaml"
    file.write_text(text[text.index("  description:") :].replace("\n  ", "\n").strip())
    shown = json.loads(run("show", str(file), "--format", "json").stdout)
    assert (shown["order"]["name"], shown["knobs"]) == ("fair_share", {"max_num_seqs": 64})
    assert shown["chunking"]["parameters"]["itl_target_ms"]["value"] == 30


def test_a_part_of_an_installed_package_is_shown_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GoldFirst(registry.Order):
        """Gold before the rest."""

        name = "gold_first"
        tier: str = Field(default="gold", description="who goes first")

        def key(self, view: Any, step: Any) -> tuple[int, ...]:
            return ()

    class Silent(registry.Victim):
        def key(self, view: Any, step: Any) -> tuple[int, ...]:
            return ()

    offered = {
        "gold_first": SimpleNamespace(load=lambda: GoldFirst),
        "silent": SimpleNamespace(load=lambda: Silent),
    }
    monkeypatch.setattr(registry, "plugins", lambda: offered)
    file = tmp_path / "gold.yaml"
    file.write_text("order: {name: gold_first, tier: silver}\nvictim: silent\n")
    text = run("show", str(file)).stdout
    assert "gold_first: Gold before the rest." in text
    assert "tier = silver  (who goes first)" in text


def test_a_plug_in_is_shown_with_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**_: Any) -> Any:
        return registry.load_policy("naive").build()

    monkeypatch.setattr(registry, "plugins", lambda: {"whole": SimpleNamespace(load=lambda: make)})
    file = tmp_path / "whole.yaml"
    file.write_text("plugin: {name: whole, tiers: 3}\n")
    assert run("show", str(file)).stdout.splitlines() == [
        "whole",
        "  plugin    whole",
        "              tiers = 3",
    ]


def test_an_unknown_policy_is_an_error_that_names_the_nearest() -> None:
    result = run("show", "contin")
    assert result.exit_code == 2
    assert "did you mean" in result.output

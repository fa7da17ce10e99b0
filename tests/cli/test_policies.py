"""`engine policies` says what there is and what it does."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

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


def test_an_unknown_policy_is_an_error_that_names_the_nearest() -> None:
    result = run("show", "contin")
    assert result.exit_code == 2
    assert "did you mean" in result.output

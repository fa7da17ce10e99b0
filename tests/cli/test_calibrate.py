"""`engine calibrate`, and the check of its sheet against real runs, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from camshaft.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(scope="module")
def config(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrate") / "c.yaml"
    path.write_text(
        f"model: {tiny_llama}\ndevice: cpu\nkv_cache_memory_bytes: 64M\nmax_model_len: 1024\n"
        "max_num_seqs: 8\nmax_num_batched_tokens: 64\n"
    )
    return path


@pytest.fixture(scope="module")
def calibrated(config: Path) -> tuple[Path, Result]:
    sheet = config.with_name("machine.yaml")
    return sheet, run("calibrate", str(config), "--seconds", "1", "--output", str(sheet))


def test_it_says_how_far_it_is_and_what_the_sheet_is_worth(calibrated: tuple[Path, Result]) -> None:
    sheet, result = calibrated
    assert result.exit_code == 0, result.output
    assert "round 1 of" in result.stderr
    assert "the same step varied by" in result.stderr
    assert result.stdout.startswith(f"{sheet}: written")
    assert f"--gpu {sheet}` uses it" in result.stdout  # a sheet elsewhere is not found by itself


def test_the_check_tells_every_run_and_judges_every_figure(
    config: Path, calibrated: tuple[Path, Result], tmp_path: Path
) -> None:
    load = tmp_path / "load.yaml"
    load.write_text(
        "arrival: {kind: closed, concurrency: 4, requests: 6}\n"
        "input_tokens: {uniform: [8, 90]}\noutput_tokens: {uniform: [4, 9]}\n"
    )
    result = run(
        "simulate", str(config), "--gpu", str(calibrated[0]), "--workload", str(load),
        "--check-against", "here", "--policies", "static,continuous", "--repeats", "2", "--format", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["policy"] for row in rows] == ["static", "continuous"]
    for row in rows:
        assert all(len(values) == 2 and min(values) > 0 for values in row["measured"].values())
        assert all(speed > 0 for speed in row["machine_speed"])
        for figure, error in row["error"].items():
            within = abs(error) <= max(0.1, row["spread"][figure])
            assert row["holds"][figure] is (within if row["quiet"] else None)
    runs = [line for line in result.stderr.splitlines() if line.startswith("run ")]
    assert [line.split(":")[0] for line in runs] == [
        f"run {n} of 2, {policy}" for n in (1, 2) for policy in ("static", "continuous")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cpu-dem",), "did you mean cpu-demo"),
        (("cpu-demo", "--set", "max_num_seqs=none"), "max_num_seqs"),
        (("cpu-demo", "--output", "no-such-folder/sheet.yaml"), "there is no folder"),
    ],
)
def test_a_mistake_is_told(arguments: tuple[str, ...], message: str) -> None:
    result = run("calibrate", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())

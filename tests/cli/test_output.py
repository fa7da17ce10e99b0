"""What every command does alike: the exit status of a mistake, and a file that cannot be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from camshaft.cli.main import main
from camshaft.cli.output import writing

GIVEN_WRONGLY = [
    "serve --config cpu-dmo",
    "serve cpu-demo-no-such",
    "pull no-such",
    "config show cpu-dmo",
    "policies show nope",
    "bench --offline cpu-dmo",
    "bench --offline cpu-demo --workload nope",
    "bench policies --config cpu-demo --workload nope",
    "bench replay {file}",
    "check-flags {file} --to 9.9",
    "check-flags {file} --gpu nope",
    "check-flags --explain XX-99",
    "matrix show 9.9",
    "matrix show --flag --no-such",
    "matrix diff 0.18 nope",
    "simulate cpu-dmo",
    "simulate h100-8b --gpu nope",
    "diagnose cpu-dmo",
    "diagnose h100-8b --log {file}.none",
    "calibrate cpu-dmo",
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("line", GIVEN_WRONGLY)
def test_what_is_given_wrongly_ends_every_command_with_status_2(line: str, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("model: facebook/opt-125m\n")
    result = run(*line.format(file=file).split())
    assert result.exit_code == 2, result.output
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "line",
    [
        "diagnose {name}",
        "diagnose h100-8b --model {name}",
        "diagnose h100-8b --trace {name}",
        "diagnose --metrics {name}",
        "diagnose --observed {name}=3",
        "simulate {name}",
        "simulate h100-8b --workload {name}",
        "simulate h100-8b --set model={name}",
    ],
)
def test_a_name_that_no_file_can_have_is_told_in_one_line(line: str) -> None:
    result = run(*line.format(name="a" * 5000).split())
    assert result.exit_code == 2, result.exception
    assert "Error: " in result.stderr


WRITES = [
    "bench --offline no-such --output",
    "bench policies --config no-such --output",
    "calibrate no-such --output",
    "diagnose no-such --html",
]


@pytest.mark.parametrize("line", WRITES)
def test_a_file_that_cannot_be_written_is_refused_before_anything_else(line: str, tmp_path: Path) -> None:
    option = line.split()[-1]
    for path, why in ((tmp_path / "none" / "r.json", "there is no folder"), (tmp_path, "is a folder")):
        result = run(*line.split(), str(path))
        assert result.exit_code == 2
        assert f"{option} {path}: {why}" in " ".join(result.stderr.split())


def test_a_disk_that_is_full_is_told_in_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(click.ClickException, match="cannot be written: No space left") as refused,
        writing(tmp_path),
    ):
        raise OSError(28, os.strerror(28))
    assert refused.value.exit_code == 1


def test_a_result_is_printed_before_its_file_fails(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, load = tmp_path / "c.yaml", tmp_path / "w.yaml"
    config.write_text(f"model: {tiny_llama}\ndevice: cpu\nmax_model_len: 64\nkv_cache_memory_bytes: 8M\n")
    load.write_text(
        "arrival: {kind: closed, concurrency: 1, requests: 1}\ninput_tokens: 5\noutput_tokens: 2\n"
    )

    def full(*_: object) -> None:
        raise click.ClickException("the disk is full")

    monkeypatch.setattr("camshaft.cli.output.write_text", full)
    common = ("--workload", str(load), "--format", "json", "--output", str(tmp_path / "r.json"))
    for arguments in (
        ("--offline", str(config)),
        ("policies", "--config", str(config), "--policies", "naive,continuous"),
    ):
        result = run("bench", *arguments, *common)
        assert result.exit_code == 1
        assert json.loads(result.stdout)
        assert "Error: the disk is full" in result.stderr


def test_a_fix_that_cannot_be_written_is_told_and_the_next_file_is_still_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "a.sh", tmp_path / "b.sh"]
    for file in files:
        file.write_text("vllm serve m --swap-space 4\n")
    write = Path.write_text

    def full(path: Path, *given: object, **named: object) -> int:
        if path == files[0]:
            raise OSError(28, os.strerror(28))
        return write(path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    result = run("check-flags", *map(str, files), "--to", "0.33.0", "--fix")
    assert result.exit_code == 2
    assert f"Error: {files[0]}: cannot be written: No space left on device" in result.stderr
    assert f"{files[0]}: would fix 1" in result.stderr
    assert files[1].read_text() == "vllm serve m\n"


def test_brackets_in_a_text_are_text() -> None:
    words = ["vllm serve Qwen/Qwen3-8B --limit-mm-per-prompt [/x]", "--gpu", "H100", "--requests", "1"]
    told = run("simulate", *words)
    assert told.exit_code == 0, told.output
    assert "[/x]" in told.output
    assert run("simulate", "--lesson", "gap").output.startswith("Where static batching loses\n")

"""In a terminal of 80 columns no line is wider, be it of a table, a report or a help page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from camshaft.cli.main import main
from camshaft.cli.output import fold

README = Path(__file__).parents[2] / "README.md"
SLOW = (
    "serve",
    "bench",
    "explain",
    "calibrate",
    "--lesson",
    "--check-against",
    "harvest",
    "verify",
    "compare",
)
MORE = [
    "config list",
    "config show h100-8b --gpu H100",
    "config show cpu-demo",
    "policies list --parts",
    "policies show latency",
    "matrix show 0.33.0",
    "matrix show 0.33.0 --env",
    "diagnose vllm.yaml --version 0.33.0 --set swap_space=4",
    "simulate h100-70b-tp2 --workload load.yaml --rate 3",
]
LOG = "INFO 11-30 10:00:00 [loggers.py:118] Engine 000: Running: 2 reqs, Waiting: 14 reqs, GPU KV cache usage: 5.0%\n"


def from_readme() -> list[str]:
    """The commands of the README that take no server and no minutes, their loads made small."""
    lines = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("engine ")]
    told = [re.sub(r"\s+#.*", "", line).removeprefix("engine ") for line in lines]
    cheap = [line for line in told if not any(word in line for word in SLOW)]
    return [re.sub(r"--workload \w+", "--workload load.yaml", line) for line in cheap]


def helps(command: click.Command, words: str = "") -> Iterator[str]:
    """Every command's help page."""
    yield f"{words} --help".strip()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from helps(found, f"{words} {name}")


@pytest.mark.parametrize("line", [*from_readme(), *MORE, *helps(main)])
def test_nothing_is_wider_than_the_terminal(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "vllm.yaml").write_text("model: Qwen/Qwen3-8B\nmax-num-seqs: 2\nswap-space: 4\n")
    (tmp_path / "vllm.log").write_text(LOG)
    (tmp_path / "load.yaml").write_text(
        "arrival: {kind: closed, concurrency: 4, requests: 12}\ninput_tokens: 64\noutput_tokens: 8\n"
    )
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "a.yaml").write_text("model: Qwen/Qwen3-8B\nswap-space: 4\n")
    words = shlex.split(line.replace("deploy/*.yaml", "deploy/a.yaml"))
    done = CliRunner().invoke(main, words)
    assert done.exit_code in (0, 1), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    wide = [shown for shown in done.output.splitlines() if len(shown) > 80 and len(shown.split()) > 1]
    assert wide == []
    assert not re.search(r"\w\.\.\.$", done.output, re.MULTILINE), "a line of help is cut short"


def test_what_is_folded_loses_no_word_and_hangs_below_its_column() -> None:
    line = "  name      " + "word " * 30
    parts = fold(line.rstrip(), 60)
    assert max(map(len, parts)) <= 60
    assert " ".join(parts).split() == line.split()
    assert all(part.startswith(" " * 12 + "word") for part in parts[1:])


@pytest.mark.parametrize("columns", [16, 30, 36, 60])
def test_what_hangs_over_of_yaml_is_a_comment(columns: int) -> None:
    parts = fold("key: value   # " + "because " * 20, columns, comment=True)
    assert all(part.lstrip().startswith("# because") for part in parts[1:])
    assert " ".join(parts).count("because") == 20

"""The command group: instant, complete, and helpful when misspelt."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from camshaft.cli.main import COMMANDS, main


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from camshaft.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'fastapi', 'numba', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)


def test_misspelt_command_names_the_nearest() -> None:
    result = CliRunner().invoke(main, ["serv"])
    assert result.exit_code == 2
    assert "Did you mean 'serve'?" in result.output


@pytest.mark.parametrize(("path", "told"), [(None, ""), ("/full/model.gguf", ": /full/model.gguf")])
def test_a_full_disk_that_is_not_the_outputs_is_told_as_such(path: str | None, told: str) -> None:
    probe = (
        "from camshaft.cli import main, pull\n"
        f"def full(*_, **__): raise OSError(28, 'No space left on device', {path!r})\n"
        "pull.pull.callback = full\n"
        "main.main(['pull'])"
    )
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == f"Error: No space left on device{told}\n"


@pytest.mark.parametrize("words", [["--help"], ["config", "list"], ["serve", "--help"], ["policies", "list"]])
def test_a_full_disk_is_told_in_a_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "camshaft", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "Error: No space left on device\n"

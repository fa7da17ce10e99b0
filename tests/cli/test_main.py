"""The command group: instant, complete, and helpful when misspelt."""

from __future__ import annotations

import subprocess
import sys

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

"""Completion: the shell is offered what exists, and no room is entered for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from click.testing import CliRunner

from camshaft.cli.main import main
from camshaft.core.config import ServeConfig, preset_names
from camshaft.core.model.loading.demo import demo_models
from camshaft.core.workload import workload_names
from camshaft.diagnostics.compat.releases.versions import versions
from camshaft.diagnostics.cost.hardware import hardware_names
from camshaft.policies.registry import names

RELEASES = [str(version) for version in versions("vllm")]


def completed(arguments: list[str], begun: str = "") -> list[CompletionItem]:
    return ShellComplete(main, {}, "engine", "_ENGINE_COMPLETE").get_completions(arguments, begun)


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (["serve", "--config"], preset_names()),
        (["config", "show"], preset_names()),
        (["policies", "show"], names()),
        (["pull"], list(demo_models())),
        (["bench", "--offline"], preset_names()),
        (["bench", "--workload"], workload_names()),
        (["bench", "policies", "--workload"], workload_names()),
        (["simulate"], preset_names()),
        (["simulate", "--workload"], workload_names()),
        (["diagnose", "--workload"], workload_names()),
        (["check-flags", "--gpu"], hardware_names()),
        (["config", "show", "--gpu"], hardware_names()),
        (["simulate", "--gpu"], hardware_names()),
        (["diagnose", "--gpu"], hardware_names()),
        (["check-flags", "--from"], RELEASES),
        (["check-flags", "--to"], RELEASES),
        (["bench", "policies", "--policies"], names()),
        (["simulate", "--policies"], names()),
        (["simulate", "--sweep"], [f"{name}=" for name in ServeConfig.model_fields]),
        *(
            ([*command, "--set"], [f"{name}=" for name in ServeConfig.model_fields])
            for command in (["serve"], ["simulate"], ["calibrate"], ["bench"], ["config", "show"])
        ),
    ],
)
def test_values_are_those_that_exist(arguments: list[str], offered: list[str]) -> None:
    assert sorted(item.value for item in completed(arguments)) == sorted(offered)
    assert [item.value for item in completed(arguments, offered[0])] == [
        name for name in sorted(offered) if name.startswith(offered[0])
    ]


def test_the_last_of_a_list_is_completed() -> None:
    offered = completed(["simulate", "--policies"], "naive,stat")
    assert [item.value for item in offered] == ["naive,static"]


def test_anything_else_is_a_file() -> None:
    (only,) = completed(["serve", "--config"], "./my")
    assert (only.type, only.value) == ("file", "./my")


def test_commands_and_options() -> None:
    assert [item.value for item in completed([], "se")] == ["serve"]
    assert "--record" in {item.value for item in completed(["serve"], "--")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell])
    assert script.exit_code == 0
    assert "_ENGINE_COMPLETE" in script.output


def test_the_tab_key_imports_nothing_heavy() -> None:
    probe = (
        "import os, sys\n"
        "os.environ |= {'COMP_WORDS': 'engine serve --config c', 'COMP_CWORD': '3', '_ENGINE_COMPLETE': 'bash_complete'}\n"
        "from camshaft.cli.main import main\n"
        "try: main(prog_name='engine')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'fastapi', 'numba', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["plain,cpu-demo"]

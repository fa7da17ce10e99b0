"""Completion: the shell is offered what exists, and no room is entered for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from click.testing import CliRunner

from camshaft.cli.main import main
from camshaft.core.arithmetic.model_sheets import model_names
from camshaft.core.config import ServeConfig, preset_names
from camshaft.core.model.loading.demo import demo_models
from camshaft.core.workload import workload_names
from camshaft.diagnostics.compat.checks.codes import all_codes
from camshaft.diagnostics.compat.releases.table import load
from camshaft.diagnostics.compat.releases.versions import versions
from camshaft.diagnostics.cost.devices import FOLDER
from camshaft.policies.registry import names

RELEASES = [str(version) for version in versions("vllm")]
SHEETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


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
        (["simulate"], preset_names() + model_names()),
        (["diagnose"], preset_names() + model_names()),
        (["diagnose", "--model"], model_names()),
        (["check-flags", "--model"], model_names()),
        (["calibrate"], preset_names()),
        (["simulate", "--workload"], workload_names()),
        (["diagnose", "--workload"], workload_names()),
        (["check-flags", "--gpu"], SHEETS),
        (["config", "show", "--gpu"], SHEETS),
        (["simulate", "--gpu"], SHEETS),
        (["diagnose", "--gpu"], SHEETS),
        (["check-flags", "--from"], RELEASES),
        (["check-flags", "--to"], RELEASES),
        (["check-flags", "--explain"], all_codes()),
        (["matrix", "show"], RELEASES),
        (["matrix", "diff", "0.18.0"], RELEASES),
        (["serve", "--config", "cpu-demo", "--policy"], names()),
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
    assert sorted(item.value for item in completed(arguments, offered[0])) == [
        name for name in sorted(offered) if name.startswith(offered[0])
    ]


def test_flags_of_the_releases_are_offered_without_dashes() -> None:
    offered = {item.value for item in completed(["matrix", "show", "--flag"])}
    newest = load("vllm", versions("vllm")[-1])
    assert {name.removeprefix("--") for name in newest.flags} < offered


def test_the_last_of_a_list_is_completed() -> None:
    offered = completed(["simulate", "--policies"], "naive,stat")
    assert [item.value for item in offered] == ["naive,static"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--config"],
        ["serve", "--chat-template"],
        ["serve", "--record"],
        ["check-flags"],
        ["check-flags", "--model"],
        *(["diagnose", option] for option in ("--log", "--metrics", "--observed", "--trace")),
    ],
)
def test_anything_else_is_a_file(arguments: list[str]) -> None:
    (only,) = completed(arguments, "./my")
    assert (only.type, only.value) == ("file", "./my")


def test_commands_and_options() -> None:
    assert [item.value for item in completed([], "se")] == ["serve"]
    assert "--record" in {item.value for item in completed(["serve"], "--")}


@pytest.mark.parametrize(
    "before", [[], ["--max-model-len", "4k"], ["--no-such-flag", "--enforce-eager"], ["--policy"]]
)
def test_settings_are_flags_of_serve(before: list[str]) -> None:
    offered = {item.value for item in completed(["serve", *before], "--max-num")}
    assert offered == {"--max-num-seqs", "--max-num-batched-tokens"}
    assert "--no-enforce-eager" in {item.value for item in completed(["serve", *before], "--no-en")}


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

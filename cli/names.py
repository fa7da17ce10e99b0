"""Names of what ships: presets, workloads, GPUs, policies, models, releases; the shell completes and lists them."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

# No room is imported for them: each press of the tab key starts a process.
_ROOT = Path(__file__).resolve().parents[1]

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _stems(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def _completer(names: Callable[[], Iterable[str]], files: bool = True) -> Completer:
    """Offers names that begin as typed; where none does, files if they may stand there."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.lower().startswith(begun.lower())]
        return found or ([CompletionItem(begun, type="file")] if files else [])

    return complete


def _list_completer(names: Callable[[], Iterable[str]]) -> Completer:
    """Completes the last of names with commas between them."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        head, comma, last = begun.rpartition(",")
        return [CompletionItem(f"{head}{comma}{name}") for name in names() if name.startswith(last.lower())]

    return complete


def _demo_models() -> list[str]:
    import yaml

    file = _ROOT / "core" / "model" / "loading" / "demo_models.yaml"
    return list(yaml.safe_load(file.read_text(encoding="utf-8")))


def _releases() -> list[str]:
    """vLLM's releases that have a table, the newest first."""
    file = _ROOT / "diagnostics" / "compat" / "releases" / "tables" / "vllm" / "versions.json"
    return json.loads(file.read_text(encoding="utf-8"))[::-1]


def _codes() -> list[str]:
    from ..diagnostics.compat.checks.codes import all_codes

    return all_codes()


def _flags() -> list[str]:
    """Every flag of vLLM's releases, without its dashes: what begins with them is taken for an option."""
    file = _ROOT / "diagnostics" / "compat" / "releases" / "tables" / "vllm" / "flags.json"
    return [name.removeprefix("--") for name in json.loads(file.read_text(encoding="utf-8"))["flags"]]


def settings() -> dict[str, bool]:
    """Every key of a configuration and whether it is a switch, read from the text of its schema."""
    tree = ast.parse((_ROOT / "core" / "config" / "schema.py").read_text(encoding="utf-8"))
    schema = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ServeConfig")
    fields = [node for node in schema.body if isinstance(node, ast.AnnAssign)]
    return {
        field.target.id: ast.unparse(field.annotation).startswith("bool")
        for field in fields
        if isinstance(field.target, ast.Name)
    }


def foreign_settings() -> frozenset[str]:
    """Flags of vLLM's releases, in snake case."""
    import yaml

    file = _ROOT / "core" / "config" / "vllm_names.yaml"
    return frozenset(yaml.safe_load(file.read_text(encoding="utf-8"))["names"])


files = _completer(lambda: ())
presets = _completer(lambda: _stems(_ROOT / "presets" / "serving"))
models = _completer(lambda: _stems(_ROOT / "presets" / "models"))
configurations = _completer(  # where a model's name does for one
    lambda: _stems(_ROOT / "presets" / "serving") + _stems(_ROOT / "presets" / "models")
)
codes = _completer(_codes, files=False)
flags = _completer(_flags, files=False)
workloads = _completer(lambda: _stems(_ROOT / "presets" / "workloads"))
policies = _completer(lambda: _stems(_ROOT / "policies"))
gpus = _completer(lambda: _stems(_ROOT / "presets" / "hardware"))
demo_models = _completer(_demo_models)
releases = _completer(_releases, files=False)
assignments = _completer(lambda: sorted(f"{name}=" for name in settings()), files=False)
policy_list = _list_completer(lambda: _stems(_ROOT / "policies"))

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=assignments,
    help="Override a value of the configuration; repeatable.",
)

# What `engine config list` lists: the folder, and the key that says in words what a file is.
LISTED = {
    "presets": ("presets/serving", "model"),
    "workloads": ("presets/workloads", "description"),
    "gpus": ("presets/hardware", "name"),
    "models": ("presets/models", "name"),
    "policies": ("policies", "description"),
}


def listed(kind: str) -> list[tuple[str, str]]:
    """(name, what it is) for everything of a kind that ships, in alphabetical order; a preset's is its model."""
    folder, key = LISTED[kind]
    files = sorted((_ROOT / folder).glob("*.yaml"), key=lambda file: file.stem)
    return [(file.stem, _line_of(file, key)) for file in files]


def _line_of(file: Path, key: str) -> str:
    """The text of one top-level key; reading the whole of a hardware sheet would take longer than all the rest."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(f"{key}:"):
                return line.removeprefix(f"{key}:").split(" #")[0].strip().strip("\"'")
    return ""

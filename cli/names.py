"""Names that the shell completes: presets, policies, demo models; beside them, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

# No room is imported for them: each press of the tab key starts a process.
_ROOT = Path(__file__).resolve().parents[1]

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _stems(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def _completer(names: Callable[[], Iterable[str]]) -> Completer:
    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return complete


def _demo_models() -> list[str]:
    import yaml

    file = _ROOT / "core" / "model" / "loading" / "demo_models.yaml"
    return list(yaml.safe_load(file.read_text(encoding="utf-8")))


presets = _completer(lambda: _stems(_ROOT / "presets" / "serving"))
workloads = _completer(lambda: _stems(_ROOT / "presets" / "workloads"))
policies = _completer(lambda: _stems(_ROOT / "policies"))
demo_models = _completer(_demo_models)

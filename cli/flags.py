"""Settings as flags, the way `vllm serve` takes them: `--max-model-len 4096` is `--set max_model_len=4096`."""

from __future__ import annotations

from collections.abc import Container, Sequence

import click

from .names import foreign_settings, settings


def as_settings(arguments: Sequence[str], own: Container[str]) -> list[str]:
    """The arguments with each flag that names a setting written as `--set`; options in `own` stay as they are.

    A switch stands alone (`--enforce-eager`, `--no-enforce-eager`), every other setting takes the next word. What
    vLLM knows and this engine lacks becomes a setting, too, for the configuration to refuse it by its name. Raises
    UsageError for a setting without a value.
    """
    known, foreign = settings(), foreign_settings()
    rest = list(arguments)
    told: list[str] = []
    while rest:
        word = rest.pop(0)
        flag, _, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        off = name.removeprefix("no_")
        if word == "--":
            return [*told, word, *rest]
        if not flag.startswith("--") or flag in own:
            told.append(word)
        elif "=" in word and (name in known or name in foreign):
            told += ["--set", f"{name}={value}"]
        elif known.get(name):
            told += ["--set", f"{name}=true"]
        elif known.get(off):
            told += ["--set", f"{off}=false"]
        elif (name in known or name in foreign) and rest and not rest[0].startswith("--"):
            told += ["--set", f"{name}={rest.pop(0)}"]
        elif name in known:
            raise click.UsageError(f"{flag} needs a value")
        elif name in foreign:
            told += ["--set", f"{name}=true"]
        else:
            told.append(word)  # refused as any unknown option
    return told

"""Settings as flags, the way `vllm serve` takes them: `--max-model-len 4096` is `--set max_model_len=4096`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence, Set

import click

from .names import files, foreign_settings, policies, settings


class SettingsCommand(click.Command):
    """A command that takes every setting as a flag, too; to the shell they are options like any other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
            args = as_settings(args, own)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        if not ctx.resilient_parsing:
            return own
        taken = {name for parameter in own for name in parameter.opts}
        spelled = {f"--{name.replace('_', '-')}": switch for name, switch in settings().items()}
        return [*own, *(_option(flag, switch) for flag, switch in spelled.items() if flag not in taken)]


def _option(flag: str, switch: bool) -> click.Option:
    if switch:
        return click.Option([f"{flag}/--no-{flag.removeprefix('--')}"])
    return click.Option([flag], shell_complete=policies if flag == "--policy" else files)


def as_settings(arguments: Sequence[str], own: Set[str]) -> list[str]:
    """The arguments with each flag that names a setting as the value of a `--set`; options in `own` stay as they are.

    A switch stands alone (`--enforce-eager`, `--no-enforce-eager`), every other setting takes the next word. What
    vLLM knows and this engine lacks becomes a setting, too, for the configuration to refuse it by its name. Raises
    UsageError for a setting without a value, and for a flag that is none, with the nearest ones.
    """
    known, foreign = settings(), foreign_settings()
    rest = list(arguments)
    told: list[str] = []
    while rest:
        word = rest.pop(0)
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        off = name.removeprefix("no_")
        if word == "--":
            return [*told, word, *rest]
        if not flag.startswith("--") or flag in own:
            told.append(word)
        elif "=" in word and (name in known or off in known or name in foreign):
            told += ["--set", word]
        elif known.get(name) or known.get(off):
            told += ["--set", f"{flag}=true"]
        elif (name in known or name in foreign) and rest and not rest[0].startswith("--"):
            told += ["--set", f"{flag}={rest.pop(0)}"]
        elif name in known:
            raise click.UsageError(f"{flag} needs a value")
        elif name in foreign:
            told += ["--set", f"{flag}=true"]
        else:
            spelled = {name: name.replace("_", "-") for name in known}
            flags = [*own, *(f"--{word}" for word in spelled.values())]
            flags += [f"--no-{spelled[name]}" for name, switch in known.items() if switch]
            raise click.NoSuchOption(flag, possibilities=difflib.get_close_matches(flag, flags, n=1))
    return told

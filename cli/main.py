"""The `engine` command. Each sub-command's module is imported only when it runs, so `--help` stays instant."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from ..core.version import __version__

# name -> (module beside this one, attribute, one line of help shown by `engine --help`)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("serve", "serve", "Serve a model over an OpenAI-compatible API."),
    "pull": ("pull", "pull", "Fetch and convert a demo model into the cache directory."),
    "config": ("config", "config", "Show effective configuration values, what ships, or the schema."),
    "policies": ("policies", "policies", "List the scheduling policies, or show one."),
    "bench": ("bench", "bench", "Measure a server, or the engine in-process."),
    "explain": ("explain", "explain", "Say why a request ran, waited or was evicted."),
    "check-flags": ("check_flags", "check_flags", "Will this configuration survive the upgrade?"),
    "matrix": ("matrix", "matrix", "Flags and rules of each release: show, diff, harvest, verify."),
    "simulate": ("simulate", "simulate", "Run the scheduler on a virtual clock."),
    "diagnose": ("diagnose", "diagnose", "Name the knob that holds a configuration back, and prove it."),
    "calibrate": ("calibrate", "calibrate", "Measure this machine and write its hardware sheet."),
    "completion": ("completion", "completion", "Print the shell completion script."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and help lines without importing them."""

    def main(self, *args: Any, **keys: Any) -> Any:
        """A full disk, behind the output or elsewhere, ends a command with one line."""
        try:
            return super().main(*args, **keys)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            click.echo(
                f"Error: {error.strerror}" + (f": {error.filename}" if error.filename else ""), err=True
            )
            # Python writes the rest as it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        return getattr(importlib.import_module(f".{module}", __package__), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="engine")
def main() -> None:
    """Camshaft: an LLM serving engine that explains itself."""

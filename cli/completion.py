"""`engine completion SHELL`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(engine completion bash)"
    zsh:   eval "$(engine completion zsh)"
    fish:  engine completion fish | source
    """
    from .main import main

    completer = get_completion_class(shell)
    if completer is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(completer(main, {}, "engine", "_ENGINE_COMPLETE").source())

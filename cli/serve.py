"""`engine serve`: the server, from a configuration file or a model's name."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from .flags import SettingsCommand
from .names import demo_models, files, presets, set_option
from .output import user_errors
from .progress import stages

if TYPE_CHECKING:
    from ..core.config import LoadedConfig

EPILOG = """\b
Examples:
  engine serve --config cpu-demo
  engine serve --config serve.yaml --set policy=latency --port 9000
  engine serve ./models/SmolLM2-135M-Instruct --max-num-seqs 16

SIGTERM (or Ctrl-C) lets running requests finish; a second one ends at once.

Exit status: 0 drained, 1 the engine failed, does not fit or cut requests off, 2 the configuration or the model is wrong.
"""


@click.command(cls=SettingsCommand, epilog=EPILOG)
@click.argument("model", required=False, type=click.Path(), shell_complete=demo_models)
@click.option(
    "--config", "source", metavar="FILE", shell_complete=presets, help="A YAML file, or the name of a preset."
)
@set_option
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 is any free one.")
@click.option(
    "--record",
    metavar="FILE",
    shell_complete=files,
    help="Record arrivals, lengths, prefix hashes and step plans, never content. A FILE that is there becomes FILE.1.",
)
@click.option("--skip-flag-check", is_flag=True, help="Do not run check-flags on the file first.")
def serve(
    model: str | None,
    source: str | None,
    overrides: tuple[str, ...],
    host: str | None,
    port: int | None,
    record: str | None,
    skip_flag_check: bool,
) -> None:
    """Serve MODEL, or what the configuration names, over an OpenAI-compatible API.

    Every key of a configuration is a flag, too, under vLLM's names: --max-model-len 4096, --no-enable-chunked-prefill.
    """
    if model is None and source is None:
        raise click.UsageError(
            "nothing to serve: name a MODEL or a --config (--config cpu-demo runs anywhere)"
        )
    given = {"model": model, "host": host, "port": port, "record": record}
    with user_errors():
        sys.exit(_serve(source, overrides, given, skip_flag_check))


def _serve(source: str | None, overrides: tuple[str, ...], given: dict[str, Any], skip_check: bool) -> int:
    from ..core.build import resolve_for_serving
    from ..core.config import load_config, preset_names
    from ..core.model.loading.hub import locate

    model = given["model"] or ""
    if model in preset_names() and not os.path.exists(model):
        raise click.UsageError(f"{model} is a preset: engine serve --config {model}")
    if model.endswith((".yaml", ".yml")) and os.path.isfile(model):
        raise click.UsageError(f"{model} is a configuration: engine serve --config {model}")
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    loaded = load_config(source, [*overrides, *options])
    if loaded.source is not None and not skip_check:
        _check_flags(loaded)
    with stages() as progress:
        resolved = resolve_for_serving(loaded, progress)
    folder = locate(loaded.config.model)

    from ..core.errors import ConfigError
    from ..core.serve.parts import parts_of
    from ..core.serve.server import run_server

    try:
        return run_server(parts_of(resolved, folder))
    except ConfigError as error:
        entry = loaded.entries.get(error.knob or "")
        if entry is None:
            raise
        raise ConfigError(f"{entry.place}: {error}") from error


def _check_flags(loaded: LoadedConfig) -> None:
    """What `engine check-flags` says of the file; an error in it ends the start before anything is loaded."""
    from ..core.errors import ConfigError
    from ..diagnostics.compat.run import check_file

    source = loaded.source
    if source is None:
        return
    for result in check_file(source, engine="camshaft"):
        # What `served` finds, the start itself tells, with the overrides laid on.
        findings = [finding for finding in result.findings if not finding.code.startswith("CF-")]
        for finding in findings:
            click.echo(f"{finding.place}: {finding.severity}: {finding.code}: {finding.message}", err=True)
        errors = sum(finding.severity == "error" for finding in findings)
        if errors:
            raise ConfigError(f"{source}: {errors} error(s) above; see: engine check-flags {source}")

"""`engine config`: what a configuration amounts to, and its schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .names import LISTED, gpus, listed, presets, set_option
from .output import echo, format_option, user_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.config import Effective, Resolved


_SECRET = ("api_key",)


@click.group()
def config() -> None:
    """Show effective configuration values, or the schema; list what ships."""


@config.command("list", short_help="List what ships: presets, loads, GPUs, models, policies.")
@click.argument("kind", required=False, type=click.Choice(list(LISTED)))
@format_option
def list_names(kind: str | None, form: str) -> None:
    """List the presets, workloads, GPUs, model sheets and policies that ship (of one KIND, if named)."""
    found = {name: listed(name) for name in ([kind] if kind else LISTED)}
    if form == "json":
        click.echo(json.dumps({name: dict(rows) for name, rows in found.items()}, indent=2))
        return
    for name, rows in found.items():
        if kind is None:
            click.echo(f"{name}:")
        width = max(len(row[0]) for row in rows)
        for row in rows:
            echo(f"{'' if kind else '  '}{row[0]:<{width}}  {row[1]}".rstrip())


@config.command(short_help="Print every effective value and where it came from.")
@click.argument("source", metavar="CONFIG", shell_complete=presets)
@set_option
@click.option(
    "--device",
    type=click.Choice(["here", "none"]),
    default="here",
    show_default=True,
    help="Resolve for this machine, or without being told any hardware.",
)
@click.option(
    "--gpu",
    metavar="NAME",
    shell_complete=gpus,
    help="Resolve for this GPU instead, named as people do: H100, A100 40GB.",
)
@click.option("--changed", is_flag=True, help="Only what was written and differs from the default.")
@format_option
def show(
    source: str, overrides: tuple[str, ...], device: str, gpu: str | None, changed: bool, form: str
) -> None:
    """Print every effective value of CONFIG (a file or a preset's name) and where it came from.

    The text is YAML again. A value that needs a fact nobody told (which model, which hardware) says so.
    """
    from ..core.config import find_hardware, find_shape, load_config, resolve
    from ..diagnostics.cost.devices import find_device, hardware_of

    told = gpu is not None or device == "here"
    with user_errors():
        loaded = load_config(source, overrides, purpose="inspect")
        hardware = (
            hardware_of(find_device(gpu)) if gpu else find_hardware(loaded.config.device) if told else None
        )
        resolved = resolve(loaded, hardware, find_shape(loaded.config.model))
        refusal = _refusal(resolved, source, overrides) if told else None
    values = {
        name: value for name, value in resolved.values.items() if not changed or _is_changed(name, resolved)
    }
    if form == "json":
        click.echo(json.dumps(_as_json(resolved, values, source, refusal), indent=2))
    else:
        _print_table(resolved, values, refusal)


def _is_changed(name: str, resolved: Resolved) -> bool:
    """Whether somebody wrote a value, or named the policy that brings it, and it is not the default."""
    from ..core.config import ServeConfig

    effective = resolved.values[name]
    if effective.origin == "policy":
        return resolved.values["policy"].origin != "default"
    return (
        effective.origin in ("given", "preset") and effective.value != ServeConfig.model_fields[name].default
    )


def _refusal(resolved: Resolved, source: str, overrides: tuple[str, ...]) -> str | None:
    """Why `engine serve` would refuse this configuration here; None where it would not."""
    from ..core.config import load_config, require_machine
    from ..core.errors import CamshaftError

    try:
        load_config(source, overrides)
        require_machine(resolved)
    except CamshaftError as error:
        return str(error)
    return None


def _as_json(
    resolved: Resolved, values: Mapping[str, Effective], source: str, refusal: str | None
) -> dict[str, Any]:
    hardware = resolved.hardware
    return {
        "config": source,
        "policy": resolved.policy.model_dump(),
        "hardware": None if hardware is None else hardware.describe(),
        "refused": refusal,
        "values": {
            name: {"value": _public(name, effective.value), "origin": effective.origin, "why": effective.why}
            for name, effective in values.items()
        },
    }


def _public(name: str, value: Any) -> Any:
    """A value as plain data; secrets only say that they are set."""
    if name in _SECRET and value:
        return "(set)"
    return list(value) if isinstance(value, tuple) else value


def _print_table(resolved: Resolved, values: Mapping[str, Effective], refusal: str | None) -> None:
    from ..core.config import group_of

    hardware = resolved.hardware
    where = hardware.describe() if hardware else "no hardware told"
    echo(f"# resolved for {where}, policy {resolved.policy.name}", comment=True)
    width = max((len(name) for name in values), default=0)
    group = ""
    for name, effective in values.items():
        if group_of(name) != group:
            group = group_of(name)
            click.echo(f"\n# {group}")
        why = effective.why.removeprefix(f"{effective.origin} ")  # "policy naive" says it itself
        origin = effective.origin + (f": {why}" if why else "")
        shown = f"{name + ':':<{width + 1}} {_shown(name, effective.value):<12}"
        echo(f"{shown}  # {origin}", comment=True)
    if refusal:
        told = f"\n`engine serve` refuses this {'on ' + where if hardware else 'here'}:\n{refusal}"
        echo(told.replace("\n", "\n# "), err=True, comment=True)


def _shown(name: str, value: Any) -> str:
    return json.dumps(_public(name, value))


@config.command(short_help="Print the JSON Schema of configurations or of loads.")
@click.option(
    "--of",
    "kind",
    type=click.Choice(["configuration", "workload"]),
    default="configuration",
    show_default=True,
)
def schema(kind: str) -> None:
    """Print the JSON Schema of configuration files or of loads, which editors use to complete and check them."""
    from ..core.config import json_schema
    from ..core.workload import WorkloadShape

    click.echo(
        json.dumps(json_schema() if kind == "configuration" else WorkloadShape.model_json_schema(), indent=2)
    )

"""`engine policies`: the scheduling policies that come with the engine, and their parts."""

from __future__ import annotations

import json
from typing import Any

import click

from .names import policies as policy_names
from .output import echo, format_option, user_errors

_EXAMPLE = (
    "  description: latency first, at 64 sequences",
    "  order: fair_share",
    "  chunking: {name: adaptive, itl_target_ms: 30}  # a part with parameters",
    "  knobs: {max_num_seqs: 64}                      # the configuration wins",
)


@click.group()
def policies() -> None:
    """List the scheduling policies, or show one."""


@policies.command("list")
@click.option("--parts", is_flag=True, help="List the parts that policy files are made of.")
@format_option
def list_policies(parts: bool, form: str) -> None:
    """List the policy files, or with --parts what they can be made of."""
    from ..policies import registry

    if parts:
        catalogue = registry.catalogue()
        _print(json.dumps(catalogue, indent=2) if form == "json" else _catalogue_text(catalogue), form)
        return
    files = [registry.load_policy(name) for name in registry.names()]
    offered = sorted(registry.plugins())
    if form == "json":
        click.echo(
            json.dumps({"policies": {f.name: f.description for f in files}, "plugins": offered}, indent=2)
        )
        return
    width = max(len(file.name) for file in files)
    for file in files:
        echo(f"{file.name:<{width}}  {file.description}")
    for name in offered:
        echo(f"{name:<{width}}  (offered by an installed package; a policy file has to name it)")


@policies.command(short_help="Show a policy file's parts and parameters.")
@click.argument("source", metavar="POLICY", shell_complete=policy_names)
@format_option
def show(source: str, form: str) -> None:
    """Show a policy file (by name or path): its parts, what they do, and every parameter in force."""
    from ..core.errors import ConfigError
    from ..policies import registry
    from ..policies.base import PolicyError

    with user_errors():
        try:
            policy = registry.load_policy(source)
        except PolicyError as error:
            raise ConfigError(str(error)) from error
    described = _describe(policy)
    _print(json.dumps(described, indent=2) if form == "json" else _policy_text(described), form)


def _print(text: str, form: str) -> None:
    click.echo(text) if form == "json" else echo(text)


def _describe(policy: Any) -> dict[str, Any]:
    """A policy as plain data: each part with what it does and its parameters in force."""
    from ..policies import registry

    shown: dict[str, Any] = {"name": policy.name, "description": policy.description}
    if policy.plugin is not None:
        name, given = _named(policy.plugin)
        parameters = {key: {"value": value, "what": ""} for key, value in given.items()}
        shown["plugin"] = {"name": name, "what": "", "parameters": parameters}
    else:
        for kind in registry.catalogue():
            shown[kind] = _part(kind, getattr(policy, kind))
    shown["knobs"] = policy.knobs.given()
    return shown


def _part(kind: str, named: str | dict[str, Any]) -> dict[str, Any]:
    from ..policies import registry

    name, given = _named(named)
    part = registry.described(kind, name)
    parameters = {
        key: {"value": given.get(key, about["default"]), "what": about["what"]}
        for key, about in part["parameters"].items()
    }
    return {"name": name, "what": part["what"], "parameters": parameters}


def _named(part: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a part, and the parameters given with it."""
    given = {"name": part} if isinstance(part, str) else dict(part)
    return given.pop("name"), given


def _policy_text(shown: dict[str, Any]) -> str:
    lines = [": ".join(filter(None, (shown["name"], shown["description"])))]
    for kind in ("order", "victim", "chunking", "batching", "plugin"):
        part = shown.get(kind)
        if part is None:
            continue
        lines.append(f"  {kind:<9} {': '.join(filter(None, (part['name'], part['what'])))}")
        for key, about in part["parameters"].items():
            what = f"  ({about['what']})" if about["what"] else ""
            lines.append(f"  {'':<9}   {key} = {about['value']}{what}")
    if shown["knobs"]:
        lines.append("  knobs (one given in the configuration wins)")
        lines += [f"  {'':<9}   {key} = {value}" for key, value in shown["knobs"].items()]
    return "\n".join(lines)


def _catalogue_text(catalogue: dict[str, list[dict[str, Any]]]) -> str:
    lines: list[str] = []
    for kind, entries in catalogue.items():
        lines.append(kind)
        for entry in entries:
            lines.append(f"  {entry['name']:<15}  {entry['what']}")
            for key, about in entry["parameters"].items():
                lines.append(f"  {'':<15}    {key} = {about['default']}  ({about['what']})")
    lines += ["", "A policy file names what is not to be as by default:", *_EXAMPLE]
    return "\n".join(lines)

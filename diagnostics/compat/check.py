"""The check: one configuration, one target release, every finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..cost.devices import Device
from .checks.combinations import rule_findings
from .checks.context import Context
from .checks.findings import Finding, Result, in_order
from .checks.options import option_findings
from .checks.refusals import refusal_findings
from .checks.traps import trap_findings
from .checks.unread import unread_findings, unread_values
from .facts.model_input import known_facts
from .facts.sheets import with_sheet
from .inputs.base import Configuration
from .releases.names import NAMED
from .releases.versions import Version


def check(
    configuration: Configuration,
    *,
    engine: str | None = None,
    start: Version | None,
    target: Version,
    model: Mapping[str, Any] | None = None,
    device: Device | None = None,
) -> Result:
    """Everything that happens to `configuration` at `target`, coming from `start` (None: nothing to compare with).

    `model` holds facts of the model (a config.json, or some of its keys), `device` the accelerator; rules that need
    one that is missing say so. The verdict `starts` follows from the findings.
    """
    name = engine or configuration.engine
    context = Context(configuration, name, start, target, known_facts(model or {}), device)
    if name == "vllm":
        context.model = with_sheet(context.model, context.values.get("model"))
    found = [
        *option_findings(context),
        *trap_findings(context),
        *_when_needed(context),
        *_default_findings(context),
        *rule_findings(context),
        *unread_findings(context),
    ]
    found += refusal_findings(context, found)
    return Result(
        input=configuration.label,
        engine=name,
        start=None if start is None else str(start),
        target=str(target),
        findings=in_order(found),
        notes=(*configuration.notes, *unread_values(context)),
    )


def _when_needed(context: Context) -> Iterator[Finding]:
    """The checks of what most configurations do not have; their modules are imported for those that do."""
    uses = context.parsed.uses
    if context.engine == "camshaft":
        from .checks.served import served_findings

        yield from served_findings(context)
    if context.configuration.gpus:
        from .checks.devices import device_findings

        yield from device_findings(context)
    if any(use.flag.nested and isinstance(use.value, dict) for use in uses):
        from .checks.nested import nested_findings

        yield from nested_findings(context)
    if context.configuration.env:
        from .checks.environment import environment_findings

        yield from environment_findings(context)
    if context.configuration.env or any(use.flag.name in NAMED for use in uses):
        from .checks.names import name_findings

        yield from name_findings(context)


def _default_findings(context: Context) -> Iterator[Finding]:
    if context.start is None or context.start == context.target:
        return iter(())
    from .checks.defaults import default_findings

    return default_findings(context)

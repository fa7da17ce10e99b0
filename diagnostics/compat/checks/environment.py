"""Findings about environment variables: those that do nothing, those that are going, and misspelled ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..inputs.base import EnvSetting
from ..parsing.parser import arity
from ..releases.changes import VariableChange
from ..releases.table import Flag, option_of
from ..releases.versions import Version, parse
from .context import Context
from .findings import Change, Edit, Finding, Severity
from .names import known_name
from .words import close_to

# What only the build, or a Kubernetes service of that name, sets.
NOT_SETTINGS = (
    "VLLM_SERVICE_",
    "VLLM_PORT_",
    "VLLM_IMAGE",
    "VLLM_VERSION",
    "VLLM_ADDITIONAL_",
    "VLLM_ARGS",
    "VLLM_MODEL",
    "VLLM_EXTRA",
)
# What out-of-tree platforms and companions of the engine read.
PLUGINS = (
    "VLLM_ASCEND_",
    "VLLM_GAUDI_",
    "VLLM_HPU_",
    "VLLM_METAL_",
    "VLLM_NEURON_",
    "VLLM_OMNI_",
    "VLLM_RBLN_",
    "VLLM_SPYRE_",
)
SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP).*)?$")


def environment_findings(context: Context) -> Iterator[Finding]:
    """What becomes of each variable the engine would look at."""
    if context.engine != "vllm":
        return
    for setting in context.configuration.env.values():
        finding = _finding(context, setting)
        if finding is not None:
            yield finding


def _finding(context: Context, setting: EnvSetting) -> Finding | None:
    name = setting.name
    variable = context.table.env.get(name)
    change = context.changes.variables.get(name)
    if variable is not None:
        refused = _refused(context, setting)
        if refused is not None:
            return refused
        if _unused_since(context, name) is not None:
            return _ineffective(context, setting)
        deprecated = variable.deprecated or (
            change is not None
            and change.deprecated is not None
            and parse(change.deprecated) <= context.target
        )
        return _deprecated(context, setting) if deprecated else None
    if not name.startswith("VLLM_") or context.changes.read_elsewhere(name, context.target):
        return None
    if context.variables.name(name) is None:
        return _unknown(context, setting)
    span = context.variables.removed_by(name, context.target)
    return _ineffective(context, setting) if span else _too_early(context, setting)


def _about(
    setting: EnvSetting,
    kind: tuple[str, Severity, Change],
    message: str,
    fix: str,
    evidence: str,
    **more: Any,
) -> Finding:
    """A finding of `kind` about a variable."""
    return Finding(*kind, message, setting.place, env=(setting.name,), fix=fix, evidence=evidence, **more)


def _refused(context: Context, setting: EnvSetting) -> Finding | None:
    """A value with which the release does not start."""
    change = context.changes.variables.get(setting.name) or VariableChange("")
    for record in change.refuses:
        if record.value == setting.value and parse(record.since) <= context.target:
            given = f"{setting.name}={setting.value}"
            return _about(
                setting,
                ("EN-06", "error", record.change),
                f"{context.target} does not start with {given}{_why(context, setting.name)}.",
                change.fix or f"Unset {setting.name}.",
                f"{context.target} {record.evidence}",
                stops=True,
                edits=_dropped(context, setting),
            )
    return None


def _dropped(context: Context, setting: EnvSetting) -> tuple[Edit, ...]:
    """The edits that take a variable out, where its text can be cut out and nothing else there uses it.

    What it asked for is kept by the option in its place; where that is for a person to write, so is the cut.
    """
    if setting.source is None or _is_expanded(context, setting.name):
        return ()
    change = context.changes.variables.get(setting.name)
    flag = _option_flag(context, change)
    if change is None or change.option is None or flag is None or context.gives(flag.name):
        return (Edit("unset", setting.name),)
    if setting.value and not known_name(context, change.option, setting.value)[0]:
        return (Edit("unset", setting.name),)
    written = None if change.fix or not setting.value else _value_edit(flag, change.option, setting.value)
    if written is None or not _has_words(context):
        return (Edit("unset", setting.name, safe=False),)
    return (Edit("unset", setting.name), written)


def _option_flag(context: Context, change: VariableChange | None) -> Flag | None:
    """The target's flag that took a variable's place, unless its key has gone as well."""
    if change is None or change.option is None:
        return None
    name, _, key = change.option.partition(".")
    flag = context.table.flags.get(name)
    return flag if flag is None or not key or key in flag.nested else None


def _has_words(context: Context) -> bool:
    """Whether an option can be written behind a word of the command."""
    return any(word.style in ("shell", "item") for word in context.configuration.words)


def _value_edit(flag: Flag, option: str, value: str) -> Edit | None:
    """The edit that gives `option` a variable's value; None where they do not speak of the same values."""
    head, _, key = option.partition(".")
    off = value.strip().lower() in ("0", "false", "no", "off")
    if not key:
        return Edit("set", head, value=(not off) if arity(flag)[1] == 0 else value)
    kind = str(flag.nested[key].type) if key in flag.nested else ""
    if "bool" in kind:
        value = "false" if off else "true"
    return Edit("set", option, value=value) if kind else None


def _instead(context: Context, setting: EnvSetting) -> str:
    change = context.changes.variables.get(setting.name)
    if change is None or change.option is None:
        return (change.fix if change else None) or f"Unset {setting.name}."
    flag = _option_flag(context, change)
    if flag is None:
        return f"Unset {setting.name}; {context.target} has no {change.option} either."
    if change.fix:
        return change.fix
    known, near = known_name(context, change.option, setting.value or "")
    if setting.value and not known:
        other = f"use {change.option} {near}" if near else f"{change.option} names another"
        return f"Unset it; {context.target} knows no {setting.value} any more: {other}."
    if context.gives(flag.name):
        return f"Unset {setting.name}; {flag.name} is given."
    edit = _value_edit(flag, change.option, setting.value) if setting.value else None
    shown = edit.value if edit is not None and isinstance(edit.value, str) else setting.value
    return f"Use {_as_option(flag, change.option, shown)}."


def _as_option(flag: Flag, option: str, value: str | None) -> str:
    """`option` with the value that a variable gave it; a switch takes none and is turned by its spelling."""
    if "." not in option and arity(flag)[1] == 0:
        off = (value or "").strip().lower() in ("0", "false", "no", "off")
        return (flag.off or option) if off else option
    return f"{option} {value}" if value else option


def _why(context: Context, name: str) -> str:
    change = context.changes.variables.get(name)
    return f": {change.why}" if change else ""


def _unused_since(context: Context, name: str) -> Version | None:
    """The release from which on a variable is listed and nothing uses it, if that is not after the target."""
    change = context.changes.variables.get(name)
    since = parse(change.unused_since) if change and change.unused_since else None
    return since if since is not None and since <= context.target else None


def _ineffective(context: Context, setting: EnvSetting) -> Finding:
    span = context.variables.removed_by(setting.name, context.target)
    gone = _unused_since(context, setting.name)
    if gone is not None:
        evidence = f"{gone} vllm/envs.py lists it, and no other file of the release uses it"
    else:
        gone = span.gone if span else context.target
        evidence = f"read by {span.last if span else '?'}; absent from vllm/envs.py at {gone}"
    message = f"Nothing reads {setting.name} from {gone} on{_why(context, setting.name)}."
    kind: tuple[str, Severity, Change] = ("EN-01", "warning", "silently_ignored")
    edits = _dropped(context, setting)
    return _about(setting, kind, message, _instead(context, setting), evidence, edits=edits)


def _deprecated(context: Context, setting: EnvSetting) -> Finding:
    gone = context.variables.goes_after(setting.name, context.target)
    when = f"; {gone} no longer reads it" if gone else ""
    message = f"{setting.name} is deprecated at {context.target}{when}{_why(context, setting.name)}."
    evidence = f"{context.target} {context.table.env[setting.name].evidence}"
    return _about(setting, ("EN-02", "warning", "deprecated"), message, _instead(context, setting), evidence)


def _too_early(context: Context, setting: EnvSetting) -> Finding:
    since = context.variables.arrives_after(setting.name, context.target)
    message = f"{setting.name} is read from {since} on; at {context.target} it has no effect."
    fix, evidence = (
        f"Upgrade to {since} or later, or unset it.",
        f"absent from vllm/envs.py at {context.target}",
    )
    return _about(setting, ("EN-03", "warning", "not_available_yet"), message, fix, evidence)


def _is_expanded(context: Context, name: str) -> bool:
    """Whether the text around the configuration uses a variable (`$X`, `${X}`, `$(X)`), so that it has an effect."""
    return re.search(rf"\$[({{]?{re.escape(name)}\b", context.configuration.source.text) is not None


def _unknown(context: Context, setting: EnvSetting) -> Finding | None:
    name = setting.name
    if name.startswith((*NOT_SETTINGS, *PLUGINS)) or SERVICE_LINK.search(name) or _is_expanded(context, name):
        return None
    near = close_to(setting.name, context.table.env, cutoff=0.8)
    hint = f"Did you mean {near}?" if near else f"Unset {setting.name}."
    flag = context.table.find(option_of(setting.name.removeprefix("VLLM_").lower()))
    if flag is not None:
        hint = f"Unset it; the server takes {_as_option(flag, flag.name, setting.value)}."
    message = f"No release of {context.engine} reads {name}; it has no effect."
    return _about(setting, ("EN-04", "warning", "unknown"), message, hint, f"{context.target} vllm/envs.py")

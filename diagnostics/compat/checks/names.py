"""Findings about values that name a part of the engine: parsers, attention backends, loaders, quantizations.

The parser of a release takes any text there; the name is looked up later. Which release knows which name is in
`releases.names`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..inputs.containers import starts_itself
from ..parsing.parser import Use
from ..releases.names import names
from ..releases.versions import parse
from .context import Context
from .findings import Edit, Finding
from .values import left
from .words import close_to, shortened

# Options whose names a plugin may add to, and what then tells the checker so.
OPEN = {"--tool-call-parser": "--tool-parser-plugin", "--reasoning-parser": "--reasoning-parser-plugin"}
UPPER = {"--attention-backend"}
PLUGINS = {"--load-format", "--quantization"}
CONNECTOR = "--kv-transfer-config.kv_connector"
# What people write for "no such thing", which no plugin is called.
NOTHING = {"none", "null", "no", "false", "off"}
# What the first attention backends of V1 had behind their names.
V1 = "_VLLM_V1"
BACKEND_VARIABLE = "VLLM_ATTENTION_BACKEND"
# Before this release an unknown name in the variable chose the default backend (vllm/attention/selector.py).
RAISES_SINCE = parse("0.10.2")


def name_findings(context: Context) -> Iterator[Finding]:
    """Names that the target does not know."""
    if context.engine != "vllm":
        return
    for use in context.parsed.uses:
        if use.flag.name == "--kv-transfer-config":
            yield from _connector(context, use)
        if use.flag.name in (*OPEN, *UPPER, "--kv-cache-dtype", "--load-format", "--quantization"):
            yield from _of_use(context, use)
    setting = context.configuration.env.get(BACKEND_VARIABLE)
    read = BACKEND_VARIABLE in context.table.env and context.target >= RAISES_SINCE
    if setting is not None and setting.value and read:
        common = {"place": setting.place, "env": (BACKEND_VARIABLE,)}
        yield from _judge(context, "--attention-backend", setting.value, BACKEND_VARIABLE, common)


def _of_use(context: Context, use: Use) -> Iterator[Finding]:
    flag = use.flag
    if flag.choices or not isinstance(use.value, str) or not use.value:
        return
    if flag.name == "--tool-call-parser" and not context.gives("--enable-auto-tool-choice"):
        return  # never looked up
    if flag.name in OPEN and context.gives(OPEN[flag.name]):
        return
    common = {"place": use.value_place, "flags": (flag.name,)}
    yield from _judge(context, flag.name, use.value, flag.name, common)


def _connector(context: Context, use: Use) -> Iterator[Finding]:
    """The KV connector named in JSON, unless a module of one's own is to provide it."""
    value = use.value
    if not isinstance(value, dict) or value.get("kv_connector_module_path"):
        return
    name = value.get("kv_connector")
    if isinstance(name, str):
        common = {"place": use.value_place, "flags": (use.flag.name,)}
        yield from _judge(context, CONNECTOR, name, "kv_connector", common)


def _judge(
    context: Context, option: str, value: str, shown: str, common: dict[str, Any]
) -> Iterator[Finding]:
    known, near = known_name(context, option, value)
    if known:
        return
    evidence = f"{context.target} registry behind {option}"
    lives = names(context.engine)[option].get(_as_known(option, value), [])
    gone = [until for _, until in lives if until is not None and parse(until) <= context.target]
    record = context.changes.value_gone(option, value, context.target)
    if record is not None:
        yield left(record, common["place"], shown, common.get("env", ()))
        return
    later = [since for since, _ in lives if parse(since) > context.target]
    near = near if not gone or near == _as_known(option, value).removesuffix(V1) else None
    hint = f"Did you mean {near}?" if near else f"Use one of {shortened(_current(context, option))}."
    whole = "flags" in common and "." not in option
    edits = (Edit("set", option, value=near, safe=False),) if near and whole else ()
    if gone:
        yield Finding(
            code="FL-18",
            severity="error",
            change="removed",
            message=f"{shown} {value} is not in the release from {gone[-1]} on.",
            fix=hint,
            evidence=evidence,
            stops=True,
            edits=edits,
            **common,
        )
    elif later:
        yield Finding(
            code="FL-05",
            severity="error",
            change="not_available_yet",
            message=f"{shown} {value} exists from {later[0]} on; {context.target} does not know it.",
            fix=f"Upgrade to {later[0]} or later, or use another.",
            evidence=evidence,
            stops=True,
            **common,
        )
    else:
        nothing = value.lower() in NOTHING
        plugins = (option in PLUGINS or (option == CONNECTOR and _own_image(context))) and not nothing
        hint = f"Leave {option} out." if nothing else hint
        yield Finding(
            code="FL-09",
            severity="warning" if plugins else "error",
            change="choice",
            message=f"{shown} {value}: {context.target} knows no such name"
            + (", unless an installed plugin adds it." if plugins else "."),
            fix=hint,
            evidence=evidence,
            stops=not plugins,
            edits=edits,
            **common,
        )


def _own_image(context: Context) -> bool:
    """Whether it runs in an image that is not vLLM's own: somebody's build may hold connectors of its own."""
    return context.configuration.image is not None and not starts_itself(context.configuration.image)


def known_name(context: Context, option: str, value: str) -> tuple[bool, str | None]:
    """Whether the target knows `value` for an option whose names are recorded, and the nearest name it knows."""
    current, name = _current(context, option), _as_known(option, value)
    if not current or name in current:
        return True, name
    plain = name.removesuffix(V1)
    if plain in current:
        return False, plain
    longer = [
        known for known in current if name.startswith((f"{known}_", f"{known}-"))
    ]  # with more behind it
    return False, max(longer, key=len) if longer else close_to(name, current)


def _as_known(option: str, value: str) -> str:
    return value.upper() if option in UPPER else value


def _current(context: Context, option: str) -> list[str]:
    """The names that the target knows for an option; none where they are not recorded."""
    at = context.target
    return [
        name
        for name, lives in names(context.engine).get(option, {}).items()
        if any(parse(since) <= at and (until is None or at < parse(until)) for since, until in lives)
    ]

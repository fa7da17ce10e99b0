"""Effective defaults of a release: what a flag amounts to when it is not given, computed from hardware and model.

The computations are data (``<engine>/defaults.yaml``); this module runs them over a configuration and over the
parser's literal defaults of the release's flag table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ...cost.devices import Device
from ..facts.unknown import Unknown
from ..releases import table
from ..releases.versions import Version
from . import conditions
from .evidence import located
from .records import load
from .scope import Facts, Scope

Usage = Literal["api_server", "llm"]


@dataclass(frozen=True)
class KnownValue:
    """A flag's effective value. `origin` is given, default (the parser's literal) or computed.

    While `depends_on` names facts that nobody gave, `value` is null and means nothing. `evidence` is the ``file:line``
    of the release that computes it.
    """

    value: Any
    origin: Literal["given", "default", "computed"]
    depends_on: tuple[str, ...] = ()
    evidence: str = ""


def parser_defaults(engine: str, version: Version) -> Callable[[str], Any]:
    """A look-up of the parser's literal defaults by snake_case name or JSON path, null for what it does not have."""
    flags = table.load(engine, version).flags

    def default(name: str) -> Any:
        dest, _, path = name.partition(".")
        flag = flags.get(table.option_of(dest))
        if flag is None:
            return None
        if path:
            field = flag.nested.get(path)
            return None if field is None else field.default
        return flag.default

    return default


def effective_defaults(
    engine: str,
    version: Version,
    flags: Mapping[str, Any],
    model: Mapping[str, Any],
    device: Device | None,
    usage: Usage = "api_server",
    env: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
) -> dict[str, KnownValue]:
    """The effective value of every flag of a release (of those in `only`), by snake_case name.

    JSON flags are left to their keys.
    """
    facts = Facts(dict(flags), dict(env or {}), dict(model), device, parser_defaults(engine, version), usage)
    rule_set = load(engine)
    scope = Scope(rule_set, version, facts)
    names = [flag.dest for flag in table.load(engine, version).flags.values()]
    names = [name for name in names if only is None or name in only]
    return {name: _effective(name, scope, facts, partial(located, engine, version=version)) for name in names}


def _effective(name: str, scope: Scope, facts: Facts, place: Callable[[str], str | None]) -> KnownValue:
    if facts.flags.get(name) is not None:
        return KnownValue(facts.flags[name], "given")
    computed = scope.default_of(name)
    if computed is None:
        return KnownValue(facts.defaults(name), "default")
    value = conditions.evaluate(computed.value, scope)
    evidence = place(f"default {name}") or ""
    if isinstance(value, Unknown):
        return KnownValue(None, "computed", tuple(sorted(value.missing)), evidence)
    return KnownValue(value, "computed", (), evidence)

"""What the names in a rule's conditions mean for one configuration at one release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...cost.devices import Device
from ..facts.model import model_facts
from ..facts.unknown import Unknown, unknown
from ..releases.versions import parse, within
from . import conditions
from .records import RuleSet, TermRange

# Values that ask for what is computed when nothing is given.
_LEFT_OPEN = {"max_model_len": (-1, "auto")}


def no_default(name: str) -> Any:
    """The defaults of a parser nobody described: every flag is unset."""
    return None


@dataclass
class Facts:
    """What is known of a configuration: the flags given, the environment, the model, the device.

    `flags` maps the snake_case name to the parsed value of what was given; `defaults` gives the parser's default of
    a flag or of a JSON key (``speculative_config.method``), null where there is none. `usage` is ``api_server`` or
    ``llm``: some defaults differ between the server and the offline class.
    """

    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    device: Device | None = None
    defaults: Callable[[str], Any] = no_default
    usage: str = "api_server"
    # What may give more options than are known, such as a variable.
    more: tuple[str, ...] = ()


class Scope:
    """Resolves the names in conditions for one configuration at one release.

    ``given.x`` is what the user gave or null, ``kept.x`` the same or unknown; ``env.X``, ``model.x`` and ``device.x`` are facts, and ``backend.x``
    one of the attention backend in use, which only a person can tell; ``memory.x`` is the start-up memory in GiB; a
    term of the rule set is computed; anything else is a flag's effective value (``speculative_config.method`` reads
    JSON).
    """

    def __init__(self, rule_set: RuleSet, version: object, facts: Facts, more: tuple[str, ...] = ()) -> None:
        """With `more`, an option that is not given is unknown: these may give it."""
        self._more = more
        self._terms = rule_set.terms
        self._defaults = rule_set.defaults
        self._version = parse(str(version))
        self._startup: dict[str, Any] | Unknown | None = None
        self._facts = facts
        self._model = model_facts(facts.model)
        self._known: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = unknown(name)  # what a definition that needs itself would see
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: str) -> Any:
        space, _, rest = name.partition(".")
        if space == "given":
            value = _descend(self._facts.flags, rest)
            return unknown(*self._more) if value is None and self._more else value
        if space == "kept":
            variable = rest.removeprefix("env.")
            value = _descend(self._facts.flags, rest) if variable == rest else self._facts.env.get(variable)
            return unknown(rest) if value is None else value
        if space == "env":
            return self._facts.env.get(rest)
        if space == "model":
            return self._model.get(rest, unknown(name))
        if space == "device":
            return self._device(rest)
        if space == "memory":
            return self._memory(rest)
        if space == "backend":
            return self._model.get(name, unknown(name))
        if name == "usage":
            return self._facts.usage
        if name in self._terms:
            return self.value_of(self._terms[name])
        return self._effective(name, space, rest)

    def _device(self, attribute: str) -> Any:
        device = self._facts.device
        return unknown("device") if device is None else getattr(device, attribute)

    def _memory(self, name: str) -> Any:
        if self._facts.device is None:
            return unknown("device")
        if self._startup is None:
            from .memory import startup_memory

            self._startup = startup_memory(str(self._version), self, self._model)
        return self._startup if isinstance(self._startup, Unknown) else self._startup[name]

    def value_of(self, ranges: list[TermRange]) -> Any:
        """The value of the range that holds at this release, null where none does."""
        where = self.range_of(ranges)
        return conditions.evaluate(where.value, self) if where else None

    def range_of(self, ranges: list[TermRange]) -> TermRange | None:
        """The range that holds at this release."""
        return next((r for r in ranges if within(self._version, r.since, r.until)), None)

    def default_of(self, name: str) -> TermRange | None:
        """How this release computes the default of a flag, or None where the parser's literal stands."""
        return self.range_of(self._defaults.get(name, []))

    def _effective(self, name: str, flag: str, rest: str) -> Any:
        given = self._facts.flags.get(flag)
        value = _descend(given, rest) if rest else given
        if value is not None and value not in _LEFT_OPEN.get(name, ()):
            return value
        if self._more:
            return unknown(*self._more)
        ranges = self._defaults.get(name)
        return self._facts.defaults(name) if ranges is None else self.value_of(ranges)


def _descend(value: Any, path: str) -> Any:
    for key in path.split("."):
        if isinstance(value, Unknown):
            return Unknown(value.missing)  # what an object holds that nobody knows may be null
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value

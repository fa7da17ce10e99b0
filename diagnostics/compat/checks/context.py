"""One configuration under one release's eyes: everything the checks look at, computed once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ....core.places import Place
from ...cost.devices import Device
from ..inputs.base import Configuration
from ..parsing.arguments import Argument, Arguments, build
from ..parsing.parser import Parsed, Parser, Use, arity
from ..releases import history, table
from ..releases.changes import Changes, changes
from ..releases.dialect import Dialect, dialect
from ..releases.table import Flag, Table
from ..releases.versions import Version
from ..rules.resolvers import KnownValue, Usage, effective_defaults


@dataclass
class Context:
    """What is checked (`configuration`), against which release (`target`), coming from which (`start`)."""

    configuration: Configuration
    engine: str
    start: Version | None
    target: Version
    model: Mapping[str, Any]
    device: Device | None

    @cached_property
    def table(self) -> Table:
        """The target's table."""
        return table.load(self.engine, self.target)

    @cached_property
    def dialect(self) -> Dialect:
        """How the target's parser reads words and files."""
        return dialect(self.engine, self.target)

    @cached_property
    def changes(self) -> Changes:
        """The hand-kept changes of the engine."""
        return changes(self.engine)

    @cached_property
    def options(self) -> history.Lives:
        """When each option came and went."""
        return history.options(self.engine)

    @cached_property
    def variables(self) -> history.Lives:
        """When each environment variable came and went."""
        return history.variables(self.engine)

    def keys(self, flag: str) -> history.Lives:
        """When each key of a JSON option came and went."""
        return history.keys(self.engine, flag)

    @cached_property
    def arguments(self) -> Arguments:
        """The words the target's parser sees."""
        return build(self.configuration, self.table, self.dialect)

    @cached_property
    def parsed(self) -> Parsed:
        """What the target's parser makes of them."""
        unheld = self.changes.unheld if self.configuration.keywords else ()
        parser = Parser(self.table, self._former_arity, self.dialect, unheld)
        return parser.parse(self.arguments.arguments)

    def _former_arity(self, spelled: str) -> int | None:
        """How many words an option of another release took."""
        name = self.options.name(spelled)
        record = self.options.record_before(name, self.target) if name else None
        if name is None or record is None:
            return None
        flag = Flag(name=name, **{k: v for k, v in record.items() if k != "nested"})
        return arity(flag)[1]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The given values by snake_case name, the model's name among them."""
        found = self.parsed.values()
        if "model" not in found and self.configuration.entry_point == "serve" and self.parsed.positionals:
            found["model"] = self.parsed.positionals[0].text
        method = found.get("quantization")
        # Every release takes the method in any case (ModelConfig: lower()).
        return found | {"quantization": method.lower()} if isinstance(method, str) else found

    @cached_property
    def env(self) -> dict[str, str]:
        """The environment variables whose values are known."""
        settings = self.configuration.env.values()
        return {setting.name: setting.value for setting in settings if setting.value is not None}

    def effective(self, names: Collection[str], version: Version | None = None) -> dict[str, KnownValue]:
        """What these options amount to at the target (or another release), as far as that is known."""
        at = version or self.target
        known: tuple[Any, ...] = (self.values, self.model, self.device)
        return effective_defaults(self.engine, at, *known, usage=self.usage, env=self.env, only=names)

    @cached_property
    def unknown_words(self) -> list[Argument]:
        """Words nobody can know; the first one of `vllm serve` is the model, which need not be known."""
        words = self.parsed.opaque
        serves = self.configuration.entry_point == "serve" and not self.parsed.positionals
        return words[1:] if serves else words

    @cached_property
    def more(self) -> tuple[str, ...]:
        """What may give options besides those that are known."""
        launcher = self.configuration.launcher
        words = (word.text for word in self.unknown_words)
        return (*self.configuration.unread, *words, *([launcher] if launcher else []))

    @property
    def usage(self) -> Usage:
        """Whose defaults hold: the offline class's, or the server's, which an engine inside a program has too."""
        return "llm" if self.configuration.usage == "llm" else "api_server"

    @cached_property
    def spelled_options(self) -> set[str]:
        """Every option given, by canonical name at this or an earlier release."""
        names = {use.flag.name for use in self.parsed.uses}
        return names | {self.options.name(m.spelled) or m.spelled for m in self.parsed.misuses}

    def gives(self, name: str) -> bool:
        """Whether the configuration sets an option or an environment variable, in whatever form."""
        return name in self.spelled_options or name in self.configuration.env

    def use(self, name: str) -> Use | None:
        """The use that decides an option's value."""
        return next((use for use in reversed(self.parsed.uses) if use.flag.name == name), None)

    def place_of(self, names: tuple[str, ...] | list[str]) -> Place:
        """Where the first of these options or variables is given; the configuration's beginning otherwise."""
        for name in names:
            use = self.use(name)
            if use is not None:
                return use.option.place
            if name in self.configuration.env:
                return self.configuration.env[name].place
        return self.configuration.start_place

    def shown(self, use: Use) -> str:
        """The option as a finding should name it: canonical, its negative form when that was written."""
        return use.spelled if use.negative and use.spelled in use.flag.negatives else use.flag.name

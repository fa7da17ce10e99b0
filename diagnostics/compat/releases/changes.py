"""What changed about single options between releases: `changes.yaml`, decoded from its packed form."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from .versions import Version, parse


class OptionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why an option went or is going, and what stands in for it; see the head of `changes.yaml`."""

    why: str
    fix: str | None = None
    into: str | None = None
    key: str | None = None
    key_from: tuple[str, str] | None = None
    values: dict[str, dict[str, Any]] = {}
    rename: str | None = None
    unset: bool = False
    set: dict[str, str | bool] = {}
    by_value: dict[str, dict[str, str]] = {}
    change: str | None = None
    safe: bool = False
    deprecated_since: str | None = None

    def is_deprecated(self, target: Version) -> bool:
        """Whether the release warns of the key in its code, which the tables do not show."""
        return self.deprecated_since is not None and parse(self.deprecated_since) <= target

    def key_at(self, target: Version) -> str | None:
        """The key of `into` at a release; `key_from` holds a later name and the first release that wants it."""
        return self.key_from[1] if self.key_from is not None and self.is_later(target) else self.key

    def is_later(self, target: Version) -> bool:
        """Whether a release wants the later key, where the value alone may not do."""
        return self.key_from is not None and parse(self.key_from[0]) <= target

    @property
    def replaced(self) -> bool:
        """Whether the option's value has another place to go, so that "removed" would say too little."""
        return bool(self.into or self.rename or self.by_value) or self.change == "replaced"


class DefaultChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A default that another release computes otherwise. `flag` may name an environment variable."""

    flag: str
    at: str
    severity: str
    message: str
    evidence: str
    fix: str | None = None
    set: dict[str, str | bool] = {}
    needs: list[str] = []
    unless: list[str] = []
    old: Any = msgspec.field(default=None, name="from")
    new: Any = msgspec.field(default=None, name="to")


class MeaningChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An option whose value means something else from a release on."""

    flag: str
    at: str
    severity: str
    message: str
    evidence: str
    fix: str | None = None
    only_if_above: float | None = None


class ValueChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that a release no longer takes, though its option stays.

    `checkpoint` says that checkpoints carry it as well, and then need no option to fail.
    """

    flag: str
    value: str
    gone: str
    why: str
    evidence: str
    fix: str | None = None
    rename: str | None = None
    checkpoint: bool = False


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An option that the front end refuses with (`excludes`) or without (`needs`) another."""

    flag: str
    since: str
    evidence: str
    needs: str | None = None
    excludes: str | None = None
    until: str | None = None


class ModuleChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A module that starts a server, and until when."""

    module: str
    evidence: str
    deprecated: str | None = None
    gone: str | None = None


class RefusedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value of an environment variable with which a release does not start, while it reads the variable."""

    value: str
    since: str
    evidence: str
    change: Literal["removed", "conflict"] = "removed"


class VariableChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why an environment variable went, and the option that took its place.

    `fix` says how, where the option does not take the variable's value as it stands. `unused_since` is the release
    from which on it is listed among the variables and nothing looks at it.
    """

    why: str
    unused_since: str | None = None
    option: str | None = None
    fix: str | None = None
    deprecated: str | None = None
    refuses: list[RefusedValue] = []


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything hand-kept for one engine."""

    options: dict[str, OptionChange] = {}
    defaults: list[DefaultChange] = []
    meanings: list[MeaningChange] = []
    values: list[ValueChange] = []
    variables: dict[str, VariableChange] = {}
    unheld: list[str] = []
    pairs: list[Pair] = []
    modules: list[ModuleChange] = []
    off_when_unset: list[str] = []
    synonyms: dict[str, str] = {}
    extensions: dict[str, str] = {}
    elsewhere: dict[str, tuple[str, str]] = {}

    def read_elsewhere(self, variable: str, target: Version) -> bool:
        """Whether a release reads an environment variable that its list of variables lacks."""
        span = self.elsewhere.get(variable)
        return span is not None and parse(span[0]) <= target <= parse(span[1])

    def defaults_between(self, start: Version, target: Version) -> list[DefaultChange]:
        """The default changes that an upgrade from `start` to `target` amounts to.

        Several changes of one option become one, and none when the last brings the first value back.
        """
        last: dict[str, DefaultChange] = {}
        for change in sorted(self.defaults, key=lambda change: parse(change.at)):
            if start < parse(change.at) <= target:
                before = last.get(change.flag)
                last[change.flag] = msgspec.structs.replace(change, old=before.old) if before else change
        return [change for change in last.values() if change.old != change.new or change in self.defaults]

    def meanings_between(self, start: Version, target: Version) -> list[MeaningChange]:
        """The changes of meaning on the way from `start` up to `target`."""
        return [change for change in self.meanings if start < parse(change.at) <= target]

    def value_gone(self, flag: str, value: Any, target: Version) -> ValueChange | None:
        """The record of a value that `target` no longer takes."""
        return next(
            (c for c in self.values if c.flag == flag and c.value == value and parse(c.gone) <= target), None
        )


@cache
def changes(engine: str) -> Changes:
    """The hand-kept changes of an engine; an engine without any has empty ones."""
    packed = msgspec.json.decode(Path(__file__).with_name("changes.json").read_bytes())
    return msgspec.convert(packed.get(engine) or {}, Changes)

"""Flag tables: what one release of an engine accepts, as data. Loaded lazily, without pydantic."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from .storage import Store, open_store
from .versions import UnknownVersion, Version, versions

# How the negative form of a switch begins, as argparse spells it.
NEGATION = "--no-"


def option_of(name: str) -> str:
    """`--max-num-seqs` of `max_num_seqs`."""
    return "--" + name.replace("_", "-")


def name_of(option: str) -> str:
    """`max_num_seqs` of `--max-num-seqs`."""
    return option.lstrip("-").replace("-", "_")


def negative_of(option: str) -> str:
    """`--no-x` of `--x`."""
    return NEGATION + option[2:]


def positive_of(spelled: str) -> str:
    """`--x` of `--no-x`; any other option as it stands."""
    return "--" + spelled.removeprefix(NEGATION) if spelled.startswith(NEGATION) else spelled


class Field(msgspec.Struct, omit_defaults=True):
    """One key of a flag that takes JSON; keys of an object inside it are spelled with dots (`pass_config.fuse_act`).

    `bounds` are those that the config object sets on a number: `ge`, `gt`, `le` and `lt`.
    """

    name: str
    type: str
    default: Any = None
    choices: list[Any] | None = None
    resolver: str | None = None
    deprecated: str | None = None
    bounds: dict[str, float] = {}


class Flag(msgspec.Struct, omit_defaults=True):
    """One option of the serve command.

    `kind` is what the option does with its value: `value`, `store_true`, `store_false`, `boolean_optional` (it has the
    spellings in `negatives` too), `store_boolean` (bare, or followed by true or false) or `append`. `default` is None
    with `resolver` set when code computes it; `{}` is a JSON object whose keys have the defaults in `nested`.
    `parse` names a conversion beyond the type: `human_readable` (8k, 16K; `_or_auto`; `_bytes`: 1GiB), `snake_case`
    (in lower case, `_` for `-`), `numbers_or_names` (between commas), `optional_value` (it may stand alone). `optional` says that `None` and the empty string are accepted and mean None. `bounds`
    are those that the config object behind the option sets on a number: `ge`, `gt`, `le` and `lt`.
    """

    name: str
    type: str
    kind: str = "value"
    aliases: list[str] = []
    negatives: list[str] = []
    default: Any = None
    choices: list[Any] | None = None
    bounds: dict[str, float] = {}
    nargs: str | int | None = None
    parse: str | None = None
    optional: bool = False
    deprecated: str | None = None
    field: str | None = None
    group: str = ""
    resolver: str | None = None
    nested: dict[str, Field] = {}
    evidence: str = ""
    defined: str = ""
    resolved: str = ""

    @property
    def dest(self) -> str:
        """The snake_case name under which the parsed value is kept."""
        return name_of(self.name)

    @property
    def off(self) -> str | None:
        """The spelling that turns a switch off, where it has one."""
        return next((text for text in self.negatives if text.startswith(NEGATION)), None)

    @property
    def sets_engine(self) -> bool:
        """Whether it sets the engine, which takes it as a keyword in Python too; the HTTP server's own are not."""
        return is_engine_field(self.field)


def is_engine_field(field: str | None) -> bool:
    """Whether the field behind an option is one of the engine's, not of the HTTP server."""
    return field is not None and "FrontendArgs" not in field


class EnvVar(msgspec.Struct, omit_defaults=True):
    """An environment variable that the release reads; `default` is None when it is unset or computed."""

    name: str
    default: Any = None
    choices: list[Any] | None = None
    evidence: str = ""
    deprecated: str | None = None


# How the names of items begin, in conditions about each item of a list.
EACH = "each."


class Refusal(msgspec.Struct, omit_defaults=True):
    """A compiled condition (`rules.conditions`) under which the release's front end, or one of its objects, raises."""

    when: list[Any]
    evidence: str = ""


class Table:
    """Everything one release accepts: `flags` by canonical name (`--max-num-seqs`), `env` by name; and what it refuses."""

    def __init__(
        self,
        engine: str,
        version: Version,
        flags: dict[str, Flag],
        env: dict[str, EnvVar],
        refusals: dict[str, Refusal] | None = None,
    ) -> None:
        self.engine = engine
        self.version = version
        self.flags = flags
        self.env = env
        self.refusals = refusals or {}
        self._spelled: dict[str, str] | None = None

    def find(self, spelled: str) -> Flag | None:
        """The flag that `spelled` names: its name, an alias, a negative form, `_` for `-`, a JSON key after a dot.

        Short options (`-tp`) are matched as they stand. None when the release has no such option.
        """
        flags = self._index()
        head = spelled.split("=", 1)[0]
        if head.startswith("--"):
            head = head.split(".", 1)[0].replace("_", "-")
        elif not head.startswith("-"):
            head = option_of(head.split(".", 1)[0])
        else:
            head = head.split(".", 1)[0]
        name = flags.get(head)
        return None if name is None else self.flags[name]

    def is_negative(self, spelled: str) -> bool:
        """Whether `spelled` is the form that turns a boolean flag off."""
        flag = self.find(spelled)
        return flag is not None and option_of(spelled.lstrip("-").split("=", 1)[0]) in flag.negatives

    def spellings(self) -> list[str]:
        """Every option string the release's parser knows."""
        return list(self._index())

    def _index(self) -> dict[str, str]:
        if self._spelled is None:
            self._spelled = {}
            for flag in self.flags.values():
                for text in (flag.name, *flag.aliases, *flag.negatives):
                    self._spelled.setdefault(text, flag.name)
        return self._spelled


@lru_cache(maxsize=1)
def store(engine: str) -> Store:
    """The stored tables of an engine, every release in runs. Raises UnknownVersion for an engine without tables."""
    found = open_store(engine)
    if found is None:
        raise UnknownVersion(f"no tables for engine {engine!r}; expected vllm or camshaft")
    return found


@lru_cache(maxsize=128)
def load(engine: str, version: Version) -> Table:
    """The table of a release. Raises UnknownVersion when it has none (`versions.resolve` finds the one to use)."""
    stored = store(engine)
    text = str(version)
    if text not in stored.versions:
        raise UnknownVersion(f"no table for {engine} {version}")
    flags = {name: _flag(name, record) for name, record in stored.flags_at(text).items()}
    env = {name: EnvVar(name=name, **record) for name, record in stored.environment_at(text).items()}
    refusals = {name: Refusal(**record) for name, record in stored.refusals_at(text).items()}
    return Table(engine, version, flags, env, refusals)


def forget() -> None:
    """Read the tables, and which there are, from disk again at the next question."""
    versions.cache_clear()
    store.cache_clear()
    load.cache_clear()


def _flag(name: str, record: dict[str, Any]) -> Flag:
    nested = {key: Field(name=key, **value) for key, value in record.pop("nested", {}).items()}
    return Flag(name=name, nested=nested, **record)


def to_record(flag: Flag) -> dict[str, Any]:
    """A flag as plain data, without its name and without what has the default value."""
    return _without_name(msgspec.to_builtins(flag))


def environment_record(variable: EnvVar) -> dict[str, Any]:
    """An environment variable as plain data, without its name and without what has the default value."""
    return _without_name(msgspec.to_builtins(variable))


def _without_name(record: dict[str, Any]) -> dict[str, Any]:
    record.pop("name")
    for key, field in record.get("nested", {}).items():
        record["nested"][key] = {name: value for name, value in field.items() if name != "name"}
    return record

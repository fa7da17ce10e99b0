"""Adds a harvested release to the stored tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..releases.storage import Record, Store, save, stored_versions, tables_directory
from ..releases.table import EnvVar, Flag, Refusal, environment_record, forget, to_record
from ..releases.versions import parse

Records = tuple[dict[str, Record], dict[str, Record], dict[str, Record]]


def stored_tables(directory: Path) -> dict[str, Records]:
    """Every stored release's records, as `save` takes them; empty when there are none."""
    if not (directory / "flags.json").is_file():
        return {}
    store = Store(directory)
    return {
        version: (store.flags_at(version), store.environment_at(version), store.refusals_at(version))
        for version in store.versions
    }


def records(flags: Mapping[str, Flag], env: Mapping[str, EnvVar], refusals: Mapping[str, Refusal]) -> Records:
    """A harvest as plain records."""
    return (
        {name: to_record(flag) for name, flag in flags.items()},
        {name: environment_record(variable) for name, variable in env.items()},
        {name: msgspec.to_builtins(refusal) for name, refusal in refusals.items()},
    )


def add_tables(engine: str, added: Mapping[str, Records], directory: Path | None = None) -> None:
    """Store releases beside (or over) those that `engine` has, in the order of their versions."""
    target = directory or tables_directory(engine)
    tables = {**stored_tables(target), **added}
    save(target, sorted(tables, key=parse), tables)
    forget()


def has_table(engine: str, version: str) -> bool:
    """Whether a release is stored already."""
    return version in (stored_versions(engine) or [])

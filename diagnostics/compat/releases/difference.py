"""What changed between the tables of two releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .storage import EVIDENCE_KEYS
from .table import Table, environment_record, to_record

Record = dict[str, Any]


class Change(msgspec.Struct):
    """One attribute of one name: its value before and after."""

    what: str
    before: Any
    after: Any


class Difference(msgspec.Struct):
    """Names added, removed and changed; JSON keys are spelled `--flag.key`."""

    added: list[str]
    removed: list[str]
    changed: dict[str, list[Change]]

    @property
    def empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


class TableDifference(msgspec.Struct, rename={"start": "from", "target": "to"}):
    """The difference of two releases' flags, JSON keys of flags both have, and environment variables."""

    engine: str
    start: str
    target: str
    flags: Difference
    keys: Difference
    environment: Difference


def difference(start: Table, target: Table) -> TableDifference:
    """What a move from `start` to `target` changes. Evidence does not count, nor does a field's new class."""
    flags = {table.version: {n: to_record(f) for n, f in table.flags.items()} for table in (start, target)}
    before, after = flags[start.version], flags[target.version]
    shared = before.keys() & after.keys()
    return TableDifference(
        engine=start.engine,
        start=str(start.version),
        target=str(target.version),
        flags=_compare(_without_nested(before), _without_nested(after)),
        keys=_compare(_keys(before, shared), _keys(after, shared)),
        environment=_compare(
            {n: environment_record(e) for n, e in start.env.items()},
            {n: environment_record(e) for n, e in target.env.items()},
        ),
    )


def _without_nested(records: Mapping[str, Record]) -> dict[str, Record]:
    return {name: {k: v for k, v in record.items() if k != "nested"} for name, record in records.items()}


def _keys(records: Mapping[str, Record], shared: set[str]) -> dict[str, Record]:
    return {
        f"{name}.{key}": field
        for name, record in records.items()
        if name in shared
        for key, field in record.get("nested", {}).items()
    }


def _compare(before: Mapping[str, Record], after: Mapping[str, Record]) -> Difference:
    ignored = {*EVIDENCE_KEYS, "field", "group"}
    changed = {}
    for name in sorted(before.keys() & after.keys()):
        attributes = sorted((before[name].keys() | after[name].keys()) - ignored)
        found = [
            Change(what, before[name].get(what), after[name].get(what))
            for what in attributes
            if before[name].get(what) != after[name].get(what)
        ]
        if found:
            changed[name] = found
    return Difference(sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys()), changed)

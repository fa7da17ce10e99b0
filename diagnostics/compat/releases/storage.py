"""How tables lie on disk: one run a change, not one copy a release.

`tables/ENGINE/flags.json` holds the list of releases and, for each flag, JSON key and environment variable, the
releases at which its record changed (`null`: gone). `evidence.json` holds file and line for every release. Both are
text with one entry a line, so that a new release's difference can be read in a review.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

Record = dict[str, Any]
Runs = list[tuple[str, Record | None]]

EVIDENCE_KEYS = ("evidence", "defined", "resolved")


class FlagsFile(msgspec.Struct):
    """The decoded `flags.json`. `nested` is keyed by flag, then by dotted JSON key."""

    versions: list[str]
    flags: dict[str, Runs]
    nested: dict[str, dict[str, Runs]]
    environment: dict[str, Runs]
    refusals: dict[str, Runs] = {}


class Lines(msgspec.Struct, array_like=True):
    """Where something stands, release by release: `files` are (release, index of the file), `lines` one a release
    (0: the whole file, null: not there)."""

    files: list[tuple[str, int]]
    first: str
    lines: list[int | None]


class EvidenceFile(msgspec.Struct):
    """The decoded `evidence.json`: for each kind of evidence, the lines by name."""

    files: list[str]
    flags: dict[str, dict[str, Lines]]
    environment: dict[str, Lines]
    refusals: dict[str, Lines] = {}


def tables_directory(engine: str) -> Path:
    """Where the tables of `engine` lie."""
    return Path(__file__).parent / "tables" / engine


def stored_versions(engine: str) -> list[str] | None:
    """The releases that have a table, in the order they are stored; None for an engine without tables."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", engine):
        return None
    path = tables_directory(engine) / "versions.json"
    return msgspec.json.decode(path.read_bytes(), type=list[str]) if path.is_file() else None


class Store:
    """The tables of one engine, decoded; evidence is read when a release is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.file = msgspec.json.decode((directory / "flags.json").read_bytes(), type=FlagsFile)
        self._order = {text: index for index, text in enumerate(self.file.versions)}
        self._evidence: EvidenceFile | None = None

    @property
    def versions(self) -> list[str]:
        """The releases with a table, ascending."""
        return self.file.versions

    def flags_at(self, version: str) -> dict[str, Record]:
        """Every flag's record at that release, JSON keys and evidence included."""
        flags = self._at(self.file.flags, version)
        for name, keys in self.file.nested.items():
            if name in flags and (found := self._at(keys, version)):
                flags[name]["nested"] = found
        evidence = self._open_evidence()
        for kind, lines in evidence.flags.items():
            for name, record in flags.items():
                if name in lines and (place := self._place(lines[name], version)):
                    record[kind] = place
        return flags

    def environment_at(self, version: str) -> dict[str, Record]:
        """Every environment variable's record at that release."""
        return self._placed(self.file.environment, self._open_evidence().environment, version)

    def refusals_at(self, version: str) -> dict[str, Record]:
        """Every refusal's record at that release."""
        return self._placed(self.file.refusals, self._open_evidence().refusals, version)

    def _placed(
        self, table: Mapping[str, Runs], lines: Mapping[str, Lines], version: str
    ) -> dict[str, Record]:
        found = self._at(table, version)
        for name, record in found.items():
            if name in lines and (place := self._place(lines[name], version)):
                record["evidence"] = place
        return found

    def evidence(self, name: str, version: str) -> str | None:
        """File and line at which that release defines a flag; None where neither is known."""
        lines = self._open_evidence().flags.get("evidence", {}).get(name)
        return None if lines is None else self._place(lines, version)

    def _open_evidence(self) -> EvidenceFile:
        if self._evidence is None:
            data = (self._directory / "evidence.json").read_bytes()
            self._evidence = msgspec.json.decode(data, type=EvidenceFile)
        return self._evidence

    def _at(self, table: Mapping[str, Runs], version: str) -> dict[str, Record]:
        position = self._order[version]
        found: dict[str, Record] = {}
        for name, runs in table.items():
            record = None
            for since, value in runs:
                if self._order[since] > position:
                    break
                record = value
            if record is not None:
                found[name] = dict(record)
        return found

    def _place(self, lines: Lines, version: str) -> str | None:
        position = self._order[version]
        offset = position - self._order[lines.first]
        if not 0 <= offset < len(lines.lines) or (line := lines.lines[offset]) is None:
            return None
        file = next(index for since, index in reversed(lines.files) if self._order[since] <= position)
        path = self._open_evidence().files[file]
        return f"{path}:{line}" if line else path


def open_store(engine: str) -> Store | None:
    """The stored tables of `engine`, or None when it has none."""
    if not stored_versions(engine):
        return None
    return Store(tables_directory(engine))


Records = Mapping[str, Record]
Tables = Mapping[str, tuple[Records, Records, Records]]


def save(directory: Path, order: list[str], tables: Tables) -> None:
    """Write the tables of releases `order` (ascending): release -> records of (flags, environment, refusals)."""
    flags = {
        version: {name: _plain(record) for name, record in tables[version][0].items()} for version in order
    }
    nested = {
        name: _runs(order, {v: tables[v][0].get(name, {}).get("nested", {}) for v in order})
        for name in _names(flags.values())
    }
    others = {
        name: {version: tables[version][part] for version in order}
        for part, name in ((1, "environment"), (2, "refusals"))
    }
    files: list[str] = []
    evidence = {
        kind: _lines(order, {v: _places(tables[v][0], kind) for v in order}, files) for kind in EVIDENCE_KEYS
    }
    places = {
        name: _lines(order, {v: _places(records, "evidence") for v, records in table.items()}, files)
        for name, table in others.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    _write(
        directory / "flags.json",
        {
            "versions": order,
            "flags": _runs(order, flags),
            "nested": {name: keys for name, keys in nested.items() if keys},
            **{
                name: _runs(
                    order, {v: {n: _plain(r) for n, r in records.items()} for v, records in table.items()}
                )
                for name, table in others.items()
            },
        },
    )
    _write(directory / "evidence.json", {"files": files, "flags": evidence, **places})
    _replace(directory / "versions.json", _text(order) + "\n")


def _plain(record: Record) -> Record:
    return {key: value for key, value in record.items() if key != "nested" and key not in EVIDENCE_KEYS}


def _places(records: Mapping[str, Record], kind: str) -> dict[str, str]:
    return {name: record[kind] for name, record in records.items() if record.get(kind)}


def _names(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({name for table in tables for name in table})


def _runs(order: list[str], tables: Mapping[str, Mapping[str, Record]]) -> dict[str, Runs]:
    """For each name, the releases at which its record changed."""
    runs: dict[str, Runs] = {}
    for name in _names(tables.values()):
        last: Record | None = None
        for version in order:
            record = tables[version].get(name)
            if record != last:
                runs.setdefault(name, []).append((version, record))
            last = record
    return runs


def _lines(order: list[str], places: Mapping[str, Mapping[str, str]], files: list[str]) -> dict[str, Lines]:
    found: dict[str, Lines] = {}
    for name in _names(places.values()):
        present = [index for index, version in enumerate(order) if name in places[version]]
        entry = Lines(files=[], first=order[present[0]], lines=[])
        for version in order[present[0] : present[-1] + 1]:
            place = places[version].get(name)
            if place is None:
                entry.lines.append(None)
                continue
            path, line = _split(place)
            entry.lines.append(line)
            if path not in files:
                files.append(path)
            if not entry.files or entry.files[-1][1] != files.index(path):
                entry.files.append((version, files.index(path)))
        found[name] = entry
    return found


def _split(place: str) -> tuple[str, int]:
    """`path:line` in two; 0 where no line is given."""
    path, _, line = place.rpartition(":")
    return (path, int(line)) if path and line.isdigit() else (place, 0)


def _write(path: Path, sections: Mapping[str, Any]) -> None:
    """JSON with one entry a line in each mapping, two levels deep where the entries are mappings themselves."""
    parts = [f"{_text(name)}:{_section(value)}" for name, value in sections.items()]
    _replace(path, "{\n" + ",\n".join(parts) + "\n}\n")


def _replace(path: Path, text: str) -> None:
    """Put a file in place whole, or not at all."""
    beside = path.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def rows(value: Any, depth: int) -> str:
    """JSON with one entry a line, so many levels deep, so that a change reads well in a diff."""
    if depth and isinstance(value, dict):
        lines = [f"{_text(name)}:{rows(entry, depth - 1)}" for name, entry in value.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    if depth and isinstance(value, list):
        return "[\n" + ",\n".join(rows(entry, depth - 1) for entry in value) + "\n]"
    return _text(value)


def _section(value: Any) -> str:
    if not isinstance(value, dict):
        return _text(value)
    entries = []
    for name, entry in value.items():
        nested = isinstance(entry, dict) and entry and len(_text(entry)) > 200
        entries.append(f"{_text(name)}:{_section(entry) if nested else _text(entry)}")
    return "{\n" + ",\n".join(entries) + "\n}"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()

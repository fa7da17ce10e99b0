"""The index of evidence: for each rule, the file and line of its code in every release it was located in.

`verify.record` makes it from unpacked releases. It is shipped compactly: consecutive releases in which the code
stands in one file under one guard share a run that keeps their lines only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from ..releases.storage import rows
from .records import RULES_FOLDER


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Releases from `start` on (indices into `Index.releases`), located in one file at `lines` under one guard."""

    file: int
    guard: str
    start: int
    lines: list[int]


class Index(msgspec.Struct, frozen=True):
    """Everything located, for one engine."""

    generated_by: str
    releases: list[str]
    files: list[str]
    rules: dict[str, list[Run]]


@dataclass(frozen=True)
class Location:
    """A line of a release: `file` is relative to the sdist (``vllm/config/vllm.py``), `guard` the conditions that lead
    there, as source text; in an index their digest."""

    file: str
    line: int
    guard: str

    @property
    def text(self) -> str:
        return f"{self.file}:{self.line}"


def digest(guard: str) -> str:
    """Eight hexadecimal digits that change when the conditions around a rule's code do."""
    import hashlib  # a check never needs it

    return hashlib.blake2s(guard.encode(), digest_size=4).hexdigest()


def decode(raw: bytes) -> Index:
    return msgspec.json.decode(raw, type=Index)


def records(index: Index, code: str) -> dict[str, Location]:
    """What is recorded of a rule, by release."""
    return {
        index.releases[run.start + offset]: Location(index.files[run.file], line, run.guard)
        for run in index.rules.get(code, [])
        for offset, line in enumerate(run.lines)
    }


def index_path(engine: str) -> Path:
    """Where the evidence index of an engine is kept."""
    return RULES_FOLDER / f"{engine}.evidence.json"


def load_index(engine: str) -> Index:
    """The shipped index; an engine that has none has nothing recorded."""
    path = index_path(engine)
    return decode(path.read_bytes()) if path.is_file() else Index("", [], [], {})


_shipped = cache(load_index)


def located(engine: str, code: str, version: object) -> str | None:
    """``file:line`` recorded of a rule, or of a computed default (``default max_num_seqs``), at a release."""
    place = records(_shipped(engine), code).get(str(version))
    return place.text if place else None


def build(generated_by: str, releases: Iterable[str], located: Mapping[str, Mapping[str, Location]]) -> Index:
    """The index of `located` (by rule code, then release) over `releases` in ascending order."""
    order = list(releases)
    files = sorted({record.file for places in located.values() for record in places.values()})
    numbers = {file: number for number, file in enumerate(files)}
    rules = {code: _runs(places, order, numbers) for code, places in sorted(located.items())}
    return Index(generated_by, order, files, rules)


def _runs(places: Mapping[str, Location], order: list[str], numbers: Mapping[str, int]) -> list[Run]:
    runs: list[Run] = []
    for number, release in enumerate(order):
        record = places.get(release)
        if record is None:
            continue
        last = runs[-1] if runs else None
        adjoins = last is not None and last.start + len(last.lines) == number
        if last is not None and adjoins and (last.file, last.guard) == (numbers[record.file], record.guard):
            last.lines.append(record.line)
        else:
            runs.append(Run(numbers[record.file], record.guard, number, [record.line]))
    return runs


def encode(index: Index) -> bytes:
    """Compact JSON, one rule a line."""
    return rows(msgspec.to_builtins(index), 2).encode() + b"\n"

"""When each option and environment variable of an engine came and went, over all releases with a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from .table import is_engine_field, store
from .versions import Version, parse

Runs = list[tuple[str, dict[str, Any] | None]]


class Span(msgspec.Struct, frozen=True):
    """A stretch of releases that have a name: the first, the last (None: the newest table), the first without it."""

    first: Version
    last: Version | None
    gone: Version | None


class Lives:
    """The spans of every name of one kind (options or environment variables)."""

    def __init__(self, runs: Mapping[str, Runs], order: list[Version]) -> None:
        self._runs = runs
        self._order = order
        self._spelled: dict[str, str] | None = None

    def name(self, spelled: str) -> str | None:
        """The canonical name that `spelled` is or was, at any release."""
        if self._spelled is None:
            self._spelled = {}
            for name, runs in self._runs.items():
                for text in (name, *(s for _, record in runs if record for s in _others(record))):
                    if text == name or text not in self._runs:
                        self._spelled.setdefault(text, name)
        return self._spelled.get(spelled)

    def spans(self, name: str, spelled: str | None = None) -> list[Span]:
        """The stretches of releases that have `name` (or take the spelling `spelled` for it), ascending."""
        found: list[Span] = []
        first: Version | None = None
        for since, record in self._runs.get(name, []):
            version = parse(since)
            there = record is not None and (spelled in (None, name) or spelled in _others(record))
            if there and first is None:
                first = version
            elif not there and first is not None:
                found.append(Span(first, self._before(version), version))
                first = None
        if first is not None:
            found.append(Span(first, None, None))
        return found

    def _before(self, version: Version) -> Version:
        return self._order[self._order.index(version) - 1]

    def record_before(self, name: str, version: Version) -> dict[str, Any] | None:
        """The newest record of `name` at or before a release, or its oldest one when it came later."""
        best: dict[str, Any] | None = None
        for since, record in self._runs.get(name, []):
            if record is not None and (best is None or parse(since) <= version):
                best = record
        return best

    def choice_span(
        self, name: str, value: object, version: Version
    ) -> tuple[Version | None, Version | None]:
        """(the first release without, the first with) a choice that the release lacks: the last time it went at or
        before `version`, and the next time it comes after; None where it did not or does not."""
        gone: Version | None = None
        there = False
        for since, record in self._runs.get(name, []):
            listed = (record or {}).get("choices")
            takes = isinstance(listed, list) and value in listed
            at = parse(since)
            if at > version and record is not None and listed is None:
                return gone, None  # any word is taken from here on; which ones mean something is not told
            if takes and at > version:
                return gone, at
            if there and not takes and record is not None and at <= version:
                gone = at
            there = takes
        return gone, None

    def leaves_engine(self, name: str, version: Version) -> Version | None:
        """The first release, at or before `version`, in which an option that set the engine is the server's alone."""
        left: Version | None = None
        before = False
        for text, record in self._runs.get(name, []):
            if record is None or parse(text) > version:
                break
            sets = is_engine_field(record.get("field"))
            if before and not sets:
                left = parse(text)
            before = sets
        return left

    def deprecated_since(self, name: str, version: Version) -> Version | None:
        """The first release of the unbroken stretch, ending at `version`, in which `name` is deprecated."""
        since: Version | None = None
        for text, record in self._runs.get(name, []):
            at = parse(text)
            if at > version:
                break
            if record and record.get("deprecated"):
                since = since or at
            else:
                since = None
        return since

    def removed_by(self, name: str, version: Version, spelled: str | None = None) -> Span | None:
        """The last stretch that ended at or before `version`, when the release no longer has `name`."""
        ended = [span for span in self.spans(name, spelled) if span.gone is not None and span.gone <= version]
        return ended[-1] if ended else None

    def arrives_after(self, name: str, version: Version, spelled: str | None = None) -> Version | None:
        """The first release after `version` that has `name`."""
        return next((span.first for span in self.spans(name, spelled) if span.first > version), None)

    def goes_after(self, name: str, version: Version) -> Version | None:
        """The first release after `version` that no longer has `name`, as far as the tables know."""
        return next((s.gone for s in self.spans(name) if s.gone is not None and s.gone > version), None)


def _others(record: Mapping[str, Any]) -> list[str]:
    return [*record.get("aliases", []), *record.get("negatives", [])]


def evidence(engine: str, name: str, version: Version) -> str:
    """File and line at which a release defines an option, or nothing."""
    return store(engine).evidence(name, str(version)) or ""


@cache
def options(engine: str) -> Lives:
    """The lives of an engine's options. Raises UnknownVersion for an engine without tables."""
    data = store(engine).file
    return Lives(data.flags, [parse(text) for text in data.versions])


@cache
def variables(engine: str) -> Lives:
    """The lives of the environment variables an engine reads."""
    data = store(engine).file
    return Lives(data.environment, [parse(text) for text in data.versions])


@cache
def keys(engine: str, flag: str) -> Lives:
    """The lives of the keys of one JSON option, nested ones spelled with dots."""
    data = store(engine).file
    return Lives(data.nested.get(flag, {}), [parse(text) for text in data.versions])

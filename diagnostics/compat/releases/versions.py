"""Releases: parsing, order, and which table answers for one that has none of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering

from ....core.errors import ConfigError
from .storage import stored_versions

_PATTERN = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){1,3})(?P<pre>[-_.]?(?:a|b|rc|alpha|beta|dev)\d*)?(?:\.?post(?P<post>\d+))?"
    r"(?:\.dev\d+)?(?:\+[\w.\-]+)?"
)


class UnknownVersion(ConfigError):
    """A version that is no version, or of a release without a table."""


@total_ordering
@dataclass(frozen=True)
class Version:
    """A release such as 0.10.1.1 or 0.6.1.post2. `release` has as many numbers as were written, three at least."""

    release: tuple[int, ...]
    post: int | None = None
    pre: bool = False

    def _key(self) -> tuple[tuple[int, ...], int, int]:
        padded = self.release + (0,) * (4 - len(self.release))
        return padded, -1 if self.pre else 0, -1 if self.post is None else self.post

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        return self._key() < other._key()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        text = ".".join(map(str, self.release))
        return text if self.post is None else f"{text}.post{self.post}"

    @property
    def minor(self) -> tuple[int, ...]:
        """The first two numbers, shared by a release and its patches."""
        return self.release[:2]


def parse(text: str) -> Version:
    """The version that `text` names: `0.18.0`, `v0.18.0`, `0.18` (its first release), `0.18.0+cu128`, `0.6.1.post2`.

    Raises UnknownVersion when it is none.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None or any(len(part) > 6 for part in match["release"].split(".")):
        raise UnknownVersion(f"{text!r} is not a version; expected one like 0.18.0")
    numbers = tuple(int(part) for part in match["release"].split("."))
    numbers += (0,) * (3 - len(numbers))
    post = int(match["post"]) if match["post"] is not None else None
    return Version(numbers, post, match["pre"] is not None)


@lru_cache
def _versions(engine: str) -> tuple[Version, ...]:
    found = stored_versions(engine)
    if found is None:
        raise UnknownVersion(f"no tables for engine {engine!r}; expected vllm or camshaft")
    return tuple(sorted(parse(text) for text in found))


def versions(engine: str) -> list[Version]:
    """The releases of `engine` that have a table, ascending. Raises UnknownVersion for an engine without tables."""
    return list(_versions(engine))


def forget() -> None:
    """Read the list of releases again at the next question (after a table was added)."""
    _versions.cache_clear()


def resolve(engine: str, text: str | None) -> tuple[Version, str | None]:
    """The release whose table answers for `text` (the newest for None), and a note when it is another release.

    An unlisted patch takes the nearest lower release of its minor line, a pre-release its final one.
    Raises UnknownVersion for anything else, so that what is not known is never passed.
    """
    known = _versions(engine)
    if not known:
        raise UnknownVersion(
            f"no table of {engine} is installed; make one with: engine matrix harvest VERSION --engine {engine}"
        )
    if text is None:
        return known[-1], None
    wanted = parse(text)
    if wanted in known:
        return next(version for version in known if version == wanted), None
    if wanted.pre and (final := Version(wanted.release)) in known:
        return final, f"{text.strip()} is a pre-release; the table of {final} is used"
    lower = [version for version in known if version.minor == wanted.minor and version < wanted]
    if not lower or wanted.pre:
        raise UnknownVersion(f"no table for {engine} {text.strip()}; {_nearest(engine, wanted)}")
    return lower[-1], f"no table for {engine} {wanted}; the nearest lower release, {lower[-1]}, is used"


def _nearest(engine: str, wanted: Version) -> str:
    known = _versions(engine)
    if wanted > known[-1]:
        return (
            f"the newest is {known[-1]}; add a release with: engine matrix harvest {wanted} --engine {engine}"
        )
    if wanted < known[0]:
        return f"the oldest is {known[0]}"
    below = max(version for version in known if version < wanted)
    above = min(version for version in known if version > wanted)
    return f"the nearest are {below} and {above}"

"""Releases: parsing, order, and which table answers for one that has none of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ....core.errors import ConfigError
from .storage import stored_versions

_PATTERN = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){1,3})(?P<pre>[-_.]?(?:a|b|rc|alpha|beta|dev)\d*)?(?:\.?post(?P<post>\d+))?"
    r"(?:\.dev\d+)?(?:\+[\w.\-]+)?"
)


class UnknownVersion(ConfigError):
    """A version that is no version, or of a release without a table."""


@dataclass(frozen=True, order=True)
class Version:
    """A release such as 0.10.1.1 or 0.6.1.post2; `final` is false for a pre-release, `post` is -1 for none."""

    release: tuple[int, int, int, int]
    final: bool = True
    post: int = -1

    def __str__(self) -> str:
        text = ".".join(map(str, self.release if self.release[3] else self.release[:3]))
        return text if self.post < 0 else f"{text}.post{self.post}"

    @property
    def minor(self) -> tuple[int, ...]:
        """The first two numbers, shared by a release and its patches."""
        return self.release[:2]


@lru_cache(maxsize=1024)
def parse(text: str) -> Version:
    """The version that `text` names: `0.18.0`, `v0.18.0`, `0.18` (its first release), `0.18.0+cu128`, `0.6.1.post2`.

    Raises UnknownVersion when it is none.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None or any(len(part) > 6 for part in match["release"].split(".")):
        raise UnknownVersion(f"{text!r} is not a version; expected one like 0.18.0")
    first, second, *rest = (int(part) for part in match["release"].split("."))
    third, fourth = (*rest, 0, 0)[:2]
    return Version((first, second, third, fourth), match["pre"] is None, int(match["post"] or -1))


def within(version: Version, since: str | None, until: str | None) -> bool:
    """Whether a release lies in a range, both ends included; an end that is not given is open."""
    return (since is None or parse(since) <= version) and (until is None or version <= parse(until))


@lru_cache
def versions(engine: str) -> tuple[Version, ...]:
    """The releases of `engine` that have a table, ascending. Raises UnknownVersion for an engine without tables."""
    found = stored_versions(engine)
    if found is None:
        raise UnknownVersion(f"no tables for engine {engine!r}; expected vllm or camshaft")
    return tuple(sorted(parse(text) for text in found))


def resolve(engine: str, text: str | None) -> tuple[Version, str | None]:
    """The release whose table answers for `text` (the newest for None), and a note when it is another release.

    An unlisted patch takes the nearest lower release of its minor line, a pre-release its final one.
    Raises UnknownVersion for anything else, so that what is not known is never passed.
    """
    known = versions(engine)
    if not known:
        raise UnknownVersion(
            f"no table of {engine} is installed; make one with: engine matrix harvest VERSION --engine {engine}"
        )
    if text is None:
        return known[-1], None
    wanted = parse(text)
    if wanted in known:
        return wanted, None
    if not wanted.final and (final := Version(wanted.release)) in known:
        return final, f"{text.strip()} is a pre-release; the table of {final} is used"
    lower = [version for version in known if version.minor == wanted.minor and version < wanted]
    if not lower or not wanted.final:
        raise UnknownVersion(f"no table for {engine} {text.strip()}; {_nearest(engine, wanted)}")
    return lower[-1], f"no table for {engine} {wanted}; the nearest lower release, {lower[-1]}, is used"


def _nearest(engine: str, wanted: Version) -> str:
    known = versions(engine)
    if wanted > known[-1]:
        return (
            f"the newest is {known[-1]}; add a release with: engine matrix harvest {wanted} --engine {engine}"
        )
    if wanted < known[0]:
        return f"the oldest is {known[0]}"
    below = max(version for version in known if version < wanted)
    above = min(version for version in known if version > wanted)
    return f"the nearest are {below} and {above}"

"""The index of evidence: for each rule, the file and line of its code in every release it was located in.

It is made by ``engine matrix verify`` and shipped compactly: consecutive releases that share a file keep only lines.
"""

from __future__ import annotations

import msgspec


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Releases (indices into `Index.releases`) from `start` on, whose evidence is in one file at `lines`."""

    file: int
    start: int
    lines: list[int]
    guard: str  # a fingerprint of the guard, as located at the last of these releases


class Index(msgspec.Struct, frozen=True):
    """Everything located, for one engine."""

    generated_by: str
    releases: list[str]
    files: list[str]
    rules: dict[str, list[Run]]


def unpack(raw: bytes) -> dict[str, dict[str, str]]:
    """Evidence ``file:line`` by rule code and release."""
    index = msgspec.json.decode(raw, type=Index)
    return {
        code: {
            index.releases[run.start + offset]: f"{index.files[run.file]}:{line}"
            for run in runs
            for offset, line in enumerate(run.lines)
        }
        for code, runs in index.rules.items()
    }

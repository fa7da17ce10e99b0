"""Where something stands in an input."""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where something stands: a file (or "command line"), 1-based line and column."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file, *(str(part) for part in (self.line, self.column) if part is not None)]
        return ":".join(parts)

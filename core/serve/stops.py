"""Stop strings across token boundaries."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the stop string whose end comes first, however the text is cut into pieces.

    Text that may be the beginning of a stop string is held back, and no more than that.
    """

    __slots__ = ("_held", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, keep_match: bool = False) -> str:
        """Text that may go out. Once `matched` is set, all before the stop string (with it, if `keep_match`)."""
        if not self._stops:
            return text
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            start, self.matched = match
            self._held = ""
            return text[: start + len(self.matched)] if keep_match else text[:start]
        cut = self._safe_length(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Text held back that turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    @property
    def held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def _first_match(self, text: str) -> tuple[int, str] | None:
        # What is held is a proper prefix of a stop string, so a match can only end in the new text.
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _safe_length(self, text: str) -> int:
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return len(text)

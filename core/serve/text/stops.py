"""Stop strings across token boundaries, at a cost that no choice of stop strings can drive up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1024)
def _failures(stop: str) -> tuple[int, ...]:
    """For each length of a match that broke off, the next shorter one to try (Knuth, Morris, Pratt 1977).

    One that would break off at the same character is passed over, so that no character costs many tries.
    """
    table = [0] * (len(stop) + 1)
    length = 0
    for end in range(1, len(stop)):
        while length and stop[end] != stop[length]:
            length = table[length]
        length += stop[end] == stop[length]
        table[end + 1] = length
    for end in range(1, len(stop)):
        shorter = table[end]
        if shorter and stop[shorter] == stop[end]:
            table[end] = table[shorter]
    return tuple(table)


class StopStrings:
    """Finds the stop string whose end comes first, however the text is cut into pieces.

    Text that may be the beginning of a stop string is held back, and no more than that. The longest
    wins among those that end at the same character.
    """

    __slots__ = ("_held", "_lengths", "_stops", "_tables", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._tables = [_failures(stop) for stop in self._stops]
        self._lengths = [0] * len(self._stops)  # how much of each stop string the text ends with
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, keep_match: bool = False) -> str:
        """Text that may go out. Once `matched` is set, all before the stop string (with it, if `keep_match`)."""
        if not self._stops:
            return text
        known = len(self._held)
        whole = self._held + text
        for at, char in enumerate(text, start=known + 1):
            if self._advance(char):
                stop = self.matched or ""
                self._held = ""
                return whole[:at] if keep_match else whole[: at - len(stop)]
        cut = len(whole) - max(self._lengths)
        self._held = whole[cut:]
        return whole[:cut]

    def finish(self) -> str:
        """Text held back that turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    @property
    def held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def _advance(self, char: str) -> bool:
        """One more character; whether a stop string ends with it."""
        for index, stop in enumerate(self._stops):
            length, table = self._lengths[index], self._tables[index]
            while length and stop[length] != char:
                length = table[length]
            length += stop[length] == char
            self._lengths[index] = length
            if length == len(stop):
                self.matched = stop
                return True
        return False

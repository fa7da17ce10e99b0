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

    Text that may be the beginning of a stop string is held back, and no more than that. Of those that end at
    the same character the first one given wins, as in vLLM.
    """

    __slots__ = ("_held", "_lengths", "_stops", "_tables", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._tables = [_failures(stop) for stop in self._stops]
        self._lengths = [0] * len(self._stops)  # how much of each stop string the text ends with
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, keep_match: bool = False, may_match: bool = True) -> str:
        """Text that may go out. Once `matched` is set, all before the stop string (with it, if `keep_match`).

        Without `may_match` none may end in this text, but one may begin.
        """
        if not self._stops:
            return text
        known = len(self._held)
        whole = self._held + text
        for at, char in enumerate(text, start=known + 1):
            if self._advance(char, may_match):
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

    def _advance(self, char: str, may_match: bool) -> bool:
        """One more character; whether a stop string ends with it."""
        for index, stop in enumerate(self._stops):
            length, table = self._lengths[index], self._tables[index]
            while length and stop[length] != char:
                length = table[length]
            length += stop[length] == char
            if length == len(stop):
                if may_match:
                    self.matched = stop
                    return True
                length = table[length]
            self._lengths[index] = length
        return False

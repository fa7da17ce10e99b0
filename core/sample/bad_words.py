"""Bad words: the last token of a forbidden sequence is masked when the output ends with the rest of it.

As in vLLM, only the output counts, not the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .edits import token_ids


@dataclass(slots=True)
class BadWords:
    """The forbidden sequences of one row and the end of what it has drawn."""

    alone: np.ndarray  # int64: sequences of one token
    longer: list[tuple[tuple[int, ...], int]]  # (what must come before, the token then forbidden)
    reach: int
    tail: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, words: tuple[tuple[int, ...], ...], output: np.ndarray, vocab: int) -> BadWords:
        longer = [(word[:-1], word[-1]) for word in words if len(word) > 1 and 0 <= word[-1] < vocab]
        reach = max((len(before) for before, _ in longer), default=0)
        made = cls(token_ids([word[0] for word in words if len(word) == 1], vocab), longer, reach)
        made.tail = output[len(output) - min(reach, len(output)) :].tolist()
        return made

    def record(self, token: int) -> None:
        """A token was drawn."""
        if self.reach:
            self.tail.append(token)
            if len(self.tail) > self.reach:
                del self.tail[0]

    def forbidden(self) -> np.ndarray:
        """int64: the tokens that would complete a sequence now."""
        tail = tuple(self.tail)
        ends = [last for before, last in self.longer if tail[len(tail) - len(before) :] == before]
        return np.concatenate([self.alone, np.asarray(ends, dtype=np.int64)]) if ends else self.alone

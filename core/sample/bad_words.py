"""Bad words: the last token of a forbidden sequence is masked when the output ends with the rest of it.

As in vLLM, only the output counts, not the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from .edits import forbid, token_ids
from .ops import Send


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


def forbid_known(
    logits: torch.Tensor,
    known: torch.Tensor,
    contexts: np.ndarray,
    prompt_lens: np.ndarray,
    entries: list[tuple[int, BadWords]],
    send: Send,
) -> None:
    """Masks float32 [m, vocab] in place, from the tokens themselves, for which the host does not wait.

    An entry is the index of a row of `logits` and its words; known: int64 [m, any], each row's tokens by
    position; contexts, prompt_lens [m]: how many of them there are, and how many are its prompt.
    """
    alone = [(index, words.alone) for index, words in entries if len(words.alone)]
    forbid(logits, alone, send)
    cases = [
        (index, before, last)
        for index, words in entries
        for before, last in words.longer
        if contexts[index] - prompt_lens[index] >= len(before)
    ]
    if not cases:
        return
    reach = max(len(before) for _, before, _ in cases)
    padded = [[-1] * (reach - len(before)) + list(before) for _, before, _ in cases]
    index, last, ends = (
        send(np.asarray(column, dtype=np.int64))
        for column in zip(*((i, last, int(contexts[i])) for i, _, last in cases), strict=True)
    )
    wanted = send(np.asarray(padded, dtype=np.int64))
    places = ends[:, None] - reach + torch.arange(reach, device=logits.device)
    found = known[index[:, None], places.clamp_min(0)]
    forbidden = ((found == wanted) | (wanted < 0)).all(-1)
    # By addition, as one token may be the last of several words, only one of which is complete.
    logits.index_put_(
        (index, last), torch.where(forbidden, -float("inf"), 0.0).to(logits.dtype), accumulate=True
    )

"""Logit bias: a number added to the logits of chosen tokens (OpenAI's API reference)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .edits import positions
from .ops import Send, stay


@dataclass(frozen=True, slots=True)
class Bias:
    """The biased tokens of one row."""

    ids: np.ndarray  # int64
    values: np.ndarray  # float32

    @classmethod
    def of(cls, bias: dict[int, float], vocab: int) -> Bias:
        held = {token: value for token, value in bias.items() if 0 <= token < vocab}
        return cls(np.fromiter(held, dtype=np.int64), np.fromiter(held.values(), dtype=np.float32))


def apply(logits: torch.Tensor, entries: list[tuple[int, Bias]], send: Send = stay) -> None:
    """Adds to float32 [m, vocab] in place; an entry is the index of a row of `logits` and its bias."""
    if entries:
        values = np.concatenate([bias.values for _, bias in entries])
        at = positions([(index, bias.ids) for index, bias in entries], send)
        logits[at] += send(values)

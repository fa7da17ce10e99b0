"""Repetition, frequency and presence penalties over the tokens a row has seen.

Repetition (arXiv 1909.05858) divides positive logits and multiplies negative ones of every token in prompt
or output; frequency and presence (OpenAI's API reference) subtract from tokens of the output alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from ..request import SamplingParams


def wanted(params: SamplingParams) -> bool:
    """Whether a request asks for any of the three."""
    return (
        params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
    )


@dataclass(slots=True)
class SeenTokens:
    """The distinct tokens of one row and how often each was drawn; sparse, so a row costs what it has seen."""

    params: SamplingParams
    ids: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # room to grow behind `size`
    drawn: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    size: int = 0
    place: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, params: SamplingParams, prompt: np.ndarray, output: np.ndarray) -> SeenTokens:
        # Repetition alone looks at the prompt.
        known = np.concatenate([prompt, output]) if params.repetition_penalty != 1.0 else output
        ids = np.unique(known).astype(np.int64)
        seen = cls(params, ids, np.zeros(len(ids), dtype=np.float32), len(ids))
        seen.place = dict(zip(ids.tolist(), range(len(ids)), strict=True))
        drawn, counts = np.unique(output, return_counts=True)
        seen.drawn[np.searchsorted(ids, drawn)] = counts
        return seen

    def record(self, token: int) -> None:
        """A token was drawn."""
        slot = self._slot(token)  # may make room, so it comes first
        self.drawn[slot] += 1.0

    def _slot(self, token: int) -> int:
        slot = self.place.get(token)
        if slot is not None:
            return slot
        if self.size == len(self.ids):
            room = max(64, 2 * self.size)
            self.ids = np.concatenate([self.ids, np.zeros(room, dtype=np.int64)])
            self.drawn = np.concatenate([self.drawn, np.zeros(room, dtype=np.float32)])
        slot = self.place[token] = self.size
        self.ids[slot] = token
        self.size += 1
        return slot


def apply(logits: torch.Tensor, entries: list[tuple[int, SeenTokens]]) -> None:
    """Changes float32 [m, vocab] on the host in place; an entry is the index of a row of `logits` and what it has seen."""
    entries = [(index, seen) for index, seen in entries if seen.size]
    if not entries:
        return
    sizes = [seen.size for _, seen in entries]

    def spread(values: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), sizes))

    rows = torch.from_numpy(np.repeat([index for index, _ in entries], sizes))
    ids = torch.from_numpy(np.concatenate([seen.ids[: seen.size] for _, seen in entries]))
    drawn = torch.from_numpy(np.concatenate([seen.drawn[: seen.size] for _, seen in entries]))
    repetition = spread([seen.params.repetition_penalty for _, seen in entries])
    frequency = spread([seen.params.frequency_penalty for _, seen in entries])
    presence = spread([seen.params.presence_penalty for _, seen in entries])
    logits[rows, ids] = _penalised(logits[rows, ids], drawn, repetition, frequency, presence)


def apply_known(
    logits: torch.Tensor,
    known: torch.Tensor,
    prompt_lens: torch.Tensor,
    contexts: torch.Tensor,
    strengths: torch.Tensor,
) -> None:
    """The same from the tokens themselves, which may be on a device that the host does not wait for.

    Changes float32 [m, vocab] in place. known: int64 [m, any], each row's tokens by position, of which the
    first `contexts` [m] count and the first `prompt_lens` [m] are its prompt; strengths: float32 [3, m],
    repetition, frequency and presence.
    """
    at = torch.arange(known.shape[1], device=known.device)
    real = at < contexts[:, None]
    ids = known.masked_fill(~real, 0)
    output = (real & (at >= prompt_lens[:, None])).float()
    drawn = torch.zeros_like(logits).scatter_add_(1, ids, output)
    seen = torch.zeros_like(logits).scatter_add_(1, ids, real.float()) > 0
    repetition, frequency, presence = strengths[:, :, None]
    penalised = _penalised(logits, drawn, repetition, frequency, presence)
    logits.copy_(torch.where(seen, penalised, logits))


def _penalised(
    values: torch.Tensor,
    drawn: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Logits of tokens seen before, `drawn` times in the output."""
    scaled = torch.where(values > 0, values / repetition, values * repetition)
    return scaled - (frequency * drawn + presence * (drawn > 0))

"""Step times fitted from what was observed, for a model or a device that nobody knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cost.speculation import tokens_per_step
from ..cost.step import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCost:
    """A step's milliseconds, linear in what it holds; has the `step` of `StepCost`.

    time = base + launch + host + sequence x decodes + context x (1,000 tokens attended to)
         + prefill_token x prompt tokens
    With drafts a decode step costs `drafted` x `draft` more and gives as many tokens as are accepted.
    """

    base_ms: float
    sequence_ms: float = 0.0
    context_ms: float = 0.0
    prefill_token_ms: float = 0.0
    launch_ms: float = 0.0
    host_ms: float = 0.0
    drafted: int = 0
    draft_ms: float = 0.0
    acceptance: float = 0.0  # of each drafted token, independently
    graph_limit: int | None = None  # decodes that the largest captured graph holds; None: any number
    missed_ms: float = 0.0  # of launches beyond it

    def step(
        self,
        decode_contexts: np.ndarray,
        chunk_tokens: np.ndarray,
        chunk_starts: np.ndarray,
        samples: int,
        padding: int = 0,
    ) -> StepTime:
        """As `StepCost.step`; chunk_starts, samples and padding do not matter here."""
        decodes = len(decode_contexts)
        share = 1.0
        if self.drafted and decodes:
            share = 1.0 / tokens_per_step(self.drafted, self.acceptance)
        decode = self.base_ms + self.sequence_ms * decodes + self.drafted * self.draft_ms
        attended = float(decode_contexts.sum()) / 1e3 * self.context_ms if decodes else 0.0
        prefill = float(chunk_tokens.sum()) * self.prefill_token_ms if len(chunk_tokens) else 0.0
        return StepTime(
            gemm=(decode * share if decodes else self.base_ms) + prefill,
            decode_attention=attended * share,
            launch=(self.launch_ms + (self.missed_ms if self._misses(decodes) else 0.0)) * share,
            host=self.host_ms * share,
        )

    def _misses(self, decodes: int) -> bool:
        return self.graph_limit is not None and decodes > self.graph_limit


def acceptance_of_each(rate: float, drafted: int) -> float:
    """The chance a of each draft, from accepted over drafted tokens: a + a^2 + ... + a^k = rate x k.

    rate is what engines report; 0 where nothing is accepted, 1 where everything is.
    """
    if rate <= 0 or drafted < 1:
        return 0.0
    if rate >= 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        gained = tokens_per_step(drafted, middle) - 1
        low, high = (middle, high) if gained < rate * drafted else (low, middle)
    return (low + high) / 2

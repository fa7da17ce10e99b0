"""Speculative decoding: a step verifies several drafted tokens for each sequence, and keeps some.

With k drafted tokens that are each accepted with probability a, independently, a step gives
(1 - a^(k+1)) / (1 - a) tokens a sequence (Leviathan et al. 2023, equation 1).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .step import StepCost, StepTime


def tokens_per_step(drafted: int, acceptance: float) -> float:
    """Expected tokens a sequence gains in one step, between 1 and `drafted` + 1."""
    if acceptance >= 1:
        return drafted + 1.0
    return (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


@dataclass(slots=True)
class SpeculativeCost:
    """A cost model with the `step` of `StepCost`, whose steps each emit one token a sequence on average.

    target: the model served; draft: the drafting model, or None for drafts that cost next to nothing
    (n-gram lookup) or, with `head_share`, a head that costs that share of the target's step a token.
    """

    target: StepCost
    draft: StepCost | None
    drafted: int
    acceptance: float
    head_share: float = 0.0

    def step(
        self,
        decode_contexts: np.ndarray,
        chunk_tokens: np.ndarray,
        chunk_starts: np.ndarray,
        samples: int,
        padding: int = 0,
    ) -> StepTime:
        """As `StepCost.step`; the decodes' share is divided by the tokens a speculative step gives."""
        none = np.empty(0, dtype=np.int64)
        decodes = len(decode_contexts)
        if not decodes:
            return self.target.step(decode_contexts, chunk_tokens, chunk_starts, samples, padding)
        verified = decodes * (self.drafted + 1)
        alone = self.target.step(decode_contexts, none, none, verified, padding + decodes * self.drafted)
        gained = tokens_per_step(self.drafted, self.acceptance)
        drafting = self._draft_ms(decode_contexts, alone.total)
        time = alone.scaled(1 / gained)
        time.gemm += drafting / gained
        if len(chunk_tokens):
            both = self.target.step(
                decode_contexts, chunk_tokens, chunk_starts, verified, padding + decodes * self.drafted
            )
            for part in fields(StepTime):
                extra = max(0.0, getattr(both, part.name) - getattr(alone, part.name))
                setattr(time, part.name, getattr(time, part.name) + extra)
        return time

    def _draft_ms(self, contexts: np.ndarray, target_ms: float) -> float:
        if self.draft is None:
            return self.drafted * self.head_share * target_ms
        none = np.empty(0, dtype=np.int64)
        once = self.draft.step(contexts, none, none, len(contexts))
        return self.drafted * (once.total - once.host)


def speedup(cost: SpeculativeCost, sequences: int, context: float) -> float:
    """Time of plain decode over time of speculative decode, a token; above 1 speculation pays."""
    none = np.empty(0, dtype=np.int64)
    contexts = np.full(sequences, context)
    plain = cost.target.step(contexts, none, none, sequences).total
    return plain / cost.step(contexts, none, none, sequences).total


def break_even_batch(cost: SpeculativeCost, context: float, limit: int = 1024) -> int:
    """The largest batch at which speculation still pays; 0 where it never does."""
    low, high = 0, 1
    while high <= limit and speedup(cost, high, context) > 1:
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if speedup(cost, middle, context) > 1 else (low, middle)
    return low

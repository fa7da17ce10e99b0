"""Log-probabilities of drawn tokens, and of a prompt's tokens, from the logits as the model gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..request import Logprob
from .ops import count_greater, largest_ids
from .temperature import weight_sums


@dataclass(frozen=True, slots=True)
class Scores:
    """What `entries` needs of m positions, as tensors."""

    tokens: torch.Tensor  # int64 [m]
    best: torch.Tensor  # int64 [m, k]: the most likely tokens
    logprobs: torch.Tensor  # float32 [m, 1 + k]: the token's own first
    ranks: torch.Tensor  # int64 [m]

    def to_host(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> Scores:
        """The same on the host, each tensor by `copy`; complete when its copies are."""
        return Scores(copy(self.tokens), copy(self.best), copy(self.logprobs), copy(self.ranks))

    def entries(self, counts: Sequence[int]) -> list[Logprob]:
        """One a position, with `counts[i]` alternatives. Waits for the device unless it is on the host."""
        return [
            Logprob([token, *ids[:count]], row[: count + 1], rank)
            for token, ids, row, rank, count in zip(
                self.tokens.tolist(),
                self.best.tolist(),
                self.logprobs.tolist(),
                self.ranks.tolist(),
                counts,
                strict=True,
            )
        ]


@torch.inference_mode()
def score(logits: torch.Tensor, tokens: torch.Tensor, alternatives: int) -> Scores:
    """Of one token [m] a row of float32 [m, vocab], and its `alternatives` most likely ones.

    Natural logarithms, before temperature and every filter. The rank counts the tokens that are more
    likely, plus one. Nothing waits for the device.
    """
    own = logits.gather(1, tokens[:, None].to(torch.int64))
    peak = logits.amax(-1)
    rows = torch.arange(len(logits), device=logits.device)
    log_sum = weight_sums(logits, rows, peak, torch.ones_like(peak)).log_()[:, None] + peak[:, None]
    best = largest_ids(logits, alternatives)
    logprobs = torch.cat([own, logits.gather(1, best)], dim=1) - log_sum
    return Scores(tokens, best, logprobs, count_greater(logits, own[:, 0]) + 1)


def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, alternatives: int | Sequence[int]
) -> list[Logprob]:
    """One entry a row of float32 [m, vocab]: the row's own token first, then its most likely ones.

    `tokens` [m]; `alternatives`: how many of the most likely ones, for all rows or each.
    """
    counts = [alternatives] * len(logits) if isinstance(alternatives, int) else list(alternatives)
    return score(logits, tokens, max(counts, default=0)).entries(counts)

"""Log-probabilities of drawn tokens, and of a prompt's tokens, from the logits as the model gave them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..schedule.plan import TokenLogprobs
from .ops import count_greater, largest_ids
from .temperature import weight_sums


@torch.inference_mode()
def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, alternatives: int | Sequence[int]
) -> list[TokenLogprobs]:
    """One entry a row of float32 [m, vocab]: the row's own token first, then its most likely ones.

    `tokens` [m]; `alternatives`: how many of the most likely ones, for all rows or each. Natural logarithms,
    before temperature and every filter. The rank counts the tokens that are more likely, plus one.
    """
    counts = [alternatives] * len(logits) if isinstance(alternatives, int) else list(alternatives)
    own = logits.gather(1, tokens[:, None].to(torch.int64))
    peak = logits.amax(-1)
    rows = torch.arange(len(logits), device=logits.device)
    log_sum = weight_sums(logits, rows, peak, torch.ones_like(peak)).log_()[:, None] + peak[:, None]
    ranks = (count_greater(logits, own[:, 0]) + 1).tolist()
    best = largest_ids(logits, max(counts, default=0))
    values = (torch.cat([own, logits.gather(1, best)], dim=1) - log_sum).tolist()
    return [
        TokenLogprobs([token, *ids[:count]], row[: count + 1], rank)
        for token, ids, row, rank, count in zip(
            tokens.tolist(), best.tolist(), values, ranks, counts, strict=True
        )
    ]


def prompt_logprobs(
    logits: torch.Tensor, next_tokens: torch.Tensor, alternatives: int
) -> list[TokenLogprobs]:
    """Entries for prompt tokens: row i of `logits` predicts `next_tokens[i]`, the token at the position after it."""
    return token_logprobs(logits, next_tokens, alternatives)

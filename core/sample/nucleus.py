"""Rows with top-k, top-p or min-p: cut and draw among a row's most likely tokens.

The cut is looked for among the 256 largest logits, then among the 4,096 largest, and only then in the whole
row sorted. The draw always walks the same list, most likely first and equal logits by index, so the token
does not depend on how far the search went.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import min_p, top_k, top_p
from .draw import pick
from .ops import largest, nth_equal
from .temperature import weight_sums
from .temperature import weights as weights_of

HEADS = (256, 4096)


@dataclass(slots=True)
class Filters:
    """Parameters of m rows, each [m]."""

    temperature: torch.Tensor  # float32, above 0
    top_k: torch.Tensor  # int64, 0 or less is off
    top_p: torch.Tensor  # float64, 1 is off
    min_p: torch.Tensor  # float32, 0 is off

    def take(self, index: torch.Tensor) -> Filters:
        return Filters(self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index])


def draw_filtered(logits: torch.Tensor, filters: Filters, uniform: torch.Tensor) -> torch.Tensor:
    """int64 [m]: a token of each row of float32 [m, vocab], drawn from what its filters leave."""
    vocab = logits.shape[1]
    tokens = torch.empty(len(logits), dtype=torch.int64)
    pending = torch.arange(len(logits))
    total = None
    for count in (*(n for n in HEADS if n < vocab), vocab):
        rows = logits if len(pending) == len(logits) else logits[pending]
        ordered, held = largest(rows, count), filters.take(pending)
        total = _total(rows, ordered[:, 0], held) if total is None else total
        rank, decided = _cut_and_pick(ordered, total, held, uniform[pending], count == vocab)
        tokens[pending] = _token_of_rank(rows, ordered, rank)
        pending, total = pending[~decided], total[~decided]
        if not len(pending):
            break
    return tokens


def _total(logits: torch.Tensor, peak: torch.Tensor, filters: Filters) -> torch.Tensor:
    """float64 [m]: the sum of all weights of a row; only top-p alone asks for it, other rows get 0."""
    total = torch.zeros(len(logits), dtype=torch.float64)
    alone = torch.nonzero((filters.top_p < 1.0) & (filters.top_k <= 0) & (filters.min_p <= 0.0))[:, 0]
    if len(alone):
        total[alone] = weight_sums(logits, alone, peak, filters.temperature)
    return total


def _cut_and_pick(
    ordered: torch.Tensor, total: torch.Tensor, filters: Filters, uniform: torch.Tensor, whole: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 [m] rank drawn, bool [m] whether `ordered`, the largest logits, was enough to decide it)."""
    weights = weights_of(ordered.clone(), ordered[:, 0], filters.temperature)
    kept = top_k.keep(weights, filters.top_k) & min_p.keep(weights, filters.min_p)
    cut = (kept.sum(-1) < ordered.shape[1]) | whole
    cumulative = (weights * kept).cumsum(-1, dtype=torch.float64)
    # What the first two filters leave is known if they cut within the list, or do not cut at all.
    mass = torch.where(cut, cumulative[:, -1], total)
    kept &= top_p.keep(cumulative, weights, mass, filters.top_p)
    decided = cut | ((total > 0.0) & (kept.sum(-1) < ordered.shape[1]))
    rank, _ = pick((weights * kept).cumsum(-1, dtype=torch.float64), uniform)
    return rank, decided


def _token_of_rank(logits: torch.Tensor, ordered: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    value = ordered.gather(1, rank[:, None])
    equal_before = ((ordered == value) & (torch.arange(ordered.shape[1]) < rank[:, None])).sum(-1)
    return nth_equal(logits, value[:, 0], equal_before)

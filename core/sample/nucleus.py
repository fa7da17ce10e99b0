"""Rows with top-k, top-p or min-p: cut and draw among a row's most likely tokens.

The cut is looked for among the 256 largest logits; rows it does not fall into are sorted whole. Either way
the draw walks the same list, most likely first and equal logits by index, so the token does not depend on
which way was taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import min_p, top_k, top_p
from .draw import pick
from .ops import largest, nth_equal

HEAD = 256


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
    head = largest(logits, HEAD)
    total = _total(logits, head[:, 0], filters)
    rank, decided = _cut_and_pick(head, total, filters, uniform, logits.shape[1])
    tokens = _token_of_rank(logits, head, rank)
    if not bool(decided.all()):
        rest = torch.nonzero(~decided)[:, 0]
        rows = logits[rest]
        ordered = largest(rows, logits.shape[1])
        rank, _ = _cut_and_pick(ordered, total[rest], filters.take(rest), uniform[rest], logits.shape[1])
        tokens[rest] = _token_of_rank(rows, ordered, rank)
    return tokens


def _total(logits: torch.Tensor, peak: torch.Tensor, filters: Filters) -> torch.Tensor:
    """float64 [m]: the sum of all weights of a row; only top-p alone asks for it, other rows get 0."""
    total = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    alone = torch.nonzero((filters.top_p < 1.0) & (filters.top_k <= 0) & (filters.min_p <= 0.0))[:, 0]
    if len(alone):
        spread = (logits[alone] - peak[alone, None]).div_(filters.temperature[alone, None]).exp_()
        total[alone] = spread.sum(-1, dtype=torch.float64)
    return total


def _cut_and_pick(
    ordered: torch.Tensor, total: torch.Tensor, filters: Filters, uniform: torch.Tensor, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 [m] rank drawn, bool [m] whether `ordered`, the largest logits, was enough to decide it)."""
    weights = ((ordered - ordered[:, :1]) / filters.temperature[:, None]).exp_().double()
    kept = top_k.keep(weights, filters.top_k) & min_p.keep(weights, filters.min_p)
    whole = ordered.shape[1] == vocab
    cut = (kept.sum(-1) < ordered.shape[1]) | whole
    cumulative = (weights * kept).cumsum(-1)
    # What the first two filters leave is known if they cut within the list, or do not cut at all.
    mass = torch.where(cut, cumulative[:, -1], total)
    kept &= top_p.keep(cumulative, weights, mass, filters.top_p)
    decided = cut | ((total > 0.0) & (kept.sum(-1) < ordered.shape[1]))
    rank, _ = pick((weights * kept).cumsum(-1), uniform)
    return rank, decided


def _token_of_rank(logits: torch.Tensor, ordered: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    value = ordered.gather(1, rank[:, None])
    equal_before = (
        (ordered == value) & (torch.arange(ordered.shape[1], device=rank.device) < rank[:, None])
    ).sum(-1)
    return nth_equal(logits, value[:, 0], equal_before)

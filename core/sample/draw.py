"""The draw: one uniform number a row picks a token by inverse transform."""

from __future__ import annotations

import torch

_BLOCK = 256


def draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """int64 [m]: token i of a row with probability weights[i] / sum; a token of weight 0 is never drawn.

    `weights` float32 [m, vocab], not negative, with a positive sum; `uniform` float64 [m] in [0, 1).
    Sums are taken over blocks first, then inside one block in float64: one pass over the weights.
    """
    rows, vocab = weights.shape
    if vocab % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, _BLOCK - vocab % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    cumulative = blocks.sum(-1).double().cumsum(-1)
    block, rest = pick(cumulative, uniform)
    index = torch.arange(rows)
    inside, _ = pick(blocks[index, block].double().cumsum(-1), rest)
    return block * _BLOCK + inside


def pick(cumulative: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 [m], float64 [m]): the step of each row that `uniform` falls on, and how far into it, in [0, 1).

    `cumulative` float64 [m, n] are running sums. A step of width 0 is never picked.
    """
    total = cumulative[:, -1]
    # Rounding must not reach the total itself, which lies beyond the last step.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))[:, None]
    step = torch.searchsorted(cumulative, target, right=True)
    step.clamp_(max=cumulative.shape[1] - 1)  # sums that are no numbers must not end the whole batch
    upper = cumulative.gather(1, step)
    lower = torch.where(step > 0, cumulative.gather(1, (step - 1).clamp_min(0)), 0.0)
    into = ((target - lower) / (upper - lower)).clamp_(0.0, 1.0 - 2.0**-53)
    return step[:, 0], into[:, 0]

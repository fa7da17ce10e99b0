"""Top-p: the smallest set of most likely tokens whose probability reaches p (arXiv 1904.09751)."""

from __future__ import annotations

import torch


def keep(
    cumulative: torch.Tensor, weights: torch.Tensor, mass: torch.Tensor, p: torch.Tensor
) -> torch.Tensor:
    """bool [m, n]: which of the weights, in descending order, remain; `p` [m] of 1 keeps all.

    `cumulative` (float64) are the running sums of `weights`; `mass` [m] is what counts as probability 1,
    the sum over the tokens that the filters before this one have left. The most likely token always stays.
    """
    before = cumulative - weights
    kept = (before < (p * mass)[:, None]) | (p >= 1.0)[:, None]
    kept[:, 0] = True
    return kept

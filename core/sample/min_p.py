"""Min-p: tokens less likely than a fraction of the most likely one are dropped (arXiv 2407.01082)."""

from __future__ import annotations

import torch


def keep(weights: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """bool [m, n]: which of the weights, in descending order, remain; `min_p` [m] of 0 is off."""
    return weights >= min_p[:, None] * weights[:, :1]

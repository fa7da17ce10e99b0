"""Top-k: only the k most likely tokens remain."""

from __future__ import annotations

import torch


def keep(weights: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """bool [m, n]: which of the weights, in descending order, remain; `k` [m] of 0 or less is off."""
    place = torch.arange(weights.shape[1])
    return (place[None, :] < k[:, None]) | (k[:, None] <= 0)

"""Temperature: logits become unnormalised probabilities exp((x - max) / T)."""

from __future__ import annotations

import torch


def weights(logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """float32, as `logits` [m, n], changed in place: each row's largest possible weight is 1.

    `peak` and `temperature` are [m]; a temperature is above 0.
    """
    return logits.sub_(peak[:, None]).div_(temperature[:, None]).exp_()

"""Temperature: logits become unnormalised probabilities exp((x - max) / T)."""

from __future__ import annotations

import torch


def weights(logits: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """float32, as `logits` [m, n], changed in place: each row's largest possible weight is 1.

    `peak` and `temperature` are [m]; a temperature is above 0.
    """
    return logits.sub_(peak[:, None]).div_(temperature[:, None]).exp_()


def weight_sums(
    logits: torch.Tensor, rows: torch.Tensor, peak: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """float64 [k]: the sum of all weights of the `rows` [k] of float32 logits [m, vocab], left as they are."""
    # A few rows at a time on a CPU: a temporary as large as all rows costs more in fresh pages than the arithmetic.
    parts = rows.split(4 if logits.device.type == "cpu" else max(len(rows), 1))
    sums = [weights(logits[part], peak[part], temperature[part]).sum(-1) for part in parts]
    return torch.cat(sums).double()

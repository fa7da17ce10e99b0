"""One token a row drawn from its logits, without writing a softmax anywhere.

The draw is a Gumbel-max: the largest of logit / temperature plus noise has the softmax's distribution (Gumbel,
1954; Maddison et al., arXiv 1411.0030). Filters are thresholds on the logit, found bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from ..checks import KernelInputError, check_size
from ..dispatch import Dispatch

_best = Dispatch(__name__, "sample")


@dataclass(frozen=True, slots=True)
class Draws:
    """Parameters of m rows, each [m]."""

    temperature: torch.Tensor  # float32; 0 takes the largest logit
    top_k: torch.Tensor  # int32; 0 is off
    top_p: torch.Tensor  # float32; 1 is off
    min_p: torch.Tensor  # float32; 0 is off
    seed: torch.Tensor  # int64
    position: torch.Tensor  # int64: tokens the row has drawn before


def sample(logits: torch.Tensor, draws: Draws, out: torch.Tensor | None = None) -> torch.Tensor:
    """int64 [m]: a token of each row of float32 logits [m, vocab], rows contiguous, any row stride.

    Top-k keeps the k largest logits and what equals the last of them; min-p what is at least min_p times as
    likely as the likeliest; top-p then the smallest set of likeliest tokens whose share of what is left
    reaches top_p, and what equals the last of them. Filters see the logits after the temperature. The same
    seed, position and logits give the same token in any batch; ties go to the lower index. Written to
    `out` where given. Logits of -inf are never drawn; a row must hold a finite one and no NaN.
    Raises KernelInputError, a ValueError that names the argument.
    """
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise KernelInputError("sample", "logits", f"are {logits.dtype} with strides {logits.stride()}")
    for field in fields(draws):
        check_size("sample", field.name, getattr(draws, field.name), (len(logits),))
    if out is None:
        out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    _best(logits)(logits, draws, out)
    return out

"""Products of rows with the weight of each row's own expert, both in FP8 (e4m3).

Scales are one an input row and one an output channel of an expert; or one a group of 128 columns of an input
row and one a block of 128 x 128 of a weight (DeepSeek-V3's recipe, arXiv 2412.19437, section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...checks import KernelInputError
from ...dispatch import Dispatch
from ...fp8 import BLOCK
from ..grouping import Groups

_best = Dispatch(__name__, "grouped_product")


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """W [experts, n, k] as e4m3 values times float32 scales, [experts, n] or, in blocks,
    [experts, ceil(n / 128), k / 128].
    """

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def is_blocked(self) -> bool:
        return self.scales.ndim == 3

    @property
    def num_bytes(self) -> int:
        return self.values.numel() + self.scales.numel() * 4


def grouped_product(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weights: ExpertWeights,
    groups: Groups,
    divisor: int,
    row_weights: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """[num_places, n] in `dtype`: place p is row p // divisor of x times its expert's weight.

    x: e4m3 [rows, k]; x_scales: float32 [rows, 1], or [rows, k / 128] beside blocks; row_weights: float32, one a
    place, multiplies the result. All contiguous. Raises KernelInputError, a ValueError that names the
    argument.
    """
    n, k = weights.values.shape[1:]
    wanted = k // BLOCK if weights.is_blocked else 1
    if x.shape[1] != k or (weights.is_blocked and k % BLOCK):
        raise KernelInputError(
            "grouped_product", "x", f"is {tuple(x.shape)}, which weights of {n} x {k} do not fit"
        )
    if x_scales.shape != (len(x), wanted):
        raise KernelInputError(
            "grouped_product", "x_scales", f"are {tuple(x_scales.shape)}, must be {(len(x), wanted)}"
        )
    out = torch.empty((groups.num_places, n), dtype=dtype, device=x.device)
    _best(x)(x, x_scales, weights, groups, divisor, row_weights, out)
    return out

"""A mixture of experts whose weights are in MXFP4 (OCP Microscaling Formats 1.0), as gpt-oss has them.

An expert is down((up + 1) * gate * sigmoid(alpha * gate)), gate cut to `limit` from above, up from both sides
(arXiv 2508.10925, section 2). On a GPU the weights stay packed, 4.25 bits a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...dispatch import Dispatch
from .. import Experts

_best = Dispatch(__name__, "make_mxfp4_experts")

GROUP = 32  # values of a row that share a scale
BIAS = 127  # of the exponent that is a scale (E8M0)
_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = torch.tensor([*_HALF, *(-value for value in _HALF)])


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """W [experts, rows, columns]: numbers of 4 bits (E2M1), each 32 of a row times one power of two (E8M0)."""

    # uint8 [experts, rows, columns / 32, 16], of two numbers in a byte the lower bits first.
    blocks: torch.Tensor
    scales: torch.Tensor  # uint8 [experts, rows, columns / 32], the exponent plus 127; 255 is not a number
    bias: torch.Tensor | None = None  # [experts, rows]

    def __post_init__(self) -> None:
        """Raises ValueError."""
        size, rows = tuple(self.scales.shape), tuple(self.scales.shape[:2])
        if len(size) != 3 or tuple(self.blocks.shape) != (*size, GROUP // 2):
            raise ValueError(f"mxfp4: blocks are {tuple(self.blocks.shape)}, scales {size}")
        if self.bias is not None and tuple(self.bias.shape) != rows:
            raise ValueError(f"mxfp4: bias is {tuple(self.bias.shape)}, must be {rows}")
        if self.blocks.dtype != torch.uint8 or self.scales.dtype != torch.uint8:
            raise ValueError(f"mxfp4: blocks are {self.blocks.dtype}, scales {self.scales.dtype}, not uint8")
        for name, tensor in (("scales", self.scales), ("bias", self.bias)):
            if tensor is not None and tensor.device != self.blocks.device:
                raise ValueError(f"mxfp4: blocks are on {self.blocks.device}, {name} on {tensor.device}")

    @property
    def size(self) -> tuple[int, int, int]:
        """(experts, rows, columns)."""
        experts, rows, groups = self.scales.shape
        return experts, rows, groups * GROUP

    @property
    def num_bytes(self) -> int:
        """Of all that it holds."""
        held = (self.blocks, self.scales) if self.bias is None else (self.blocks, self.scales, self.bias)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """[experts, rows, columns], made expert by expert: in float32 one is eight times as large as it was."""
        out = torch.empty(self.size, dtype=dtype, device=self.blocks.device)
        values = _VALUES.to(self.blocks.device)
        for expert, blocks, scales in zip(out, self.blocks, self.scales, strict=True):
            numbers = values[torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).int()]
            powers = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - BIAS)
            powers.masked_fill_(scales == 2 * BIAS + 1, float("nan"))
            expert.copy_((numbers * powers.unsqueeze(-1)).flatten(-2))
        return out


def make_mxfp4_experts(
    gate_up: Mxfp4Weight, down: Mxfp4Weight, dtype: torch.dtype, limit: float = 7.0, alpha: float = 1.702
) -> Experts:
    """Experts for activations in `dtype`. Rows of `gate_up` [E, 2 * inner, hidden] alternate gate and up, those of
    `down` are [E, hidden, inner]. Raises ValueError.
    """
    (experts, both, hidden), (others, rows, inner) = gate_up.size, down.size
    if (experts, both, hidden) != (others, 2 * inner, rows):
        raise ValueError(f"mxfp4: experts' weights {gate_up.size} and {down.size} do not fit each other")
    return _best(gate_up.blocks)(gate_up, down, dtype, limit, alpha)

"""MXFP4 weights of a checkpoint (OCP Microscaling Formats 1.0): 32 values of 4 bits share a power of two.

gpt-oss keeps its experts so: in place of NAME [experts, columns, rows], `NAME_blocks`, uint8 [experts, rows, groups, 16]
with two values a byte, the lower four bits first, and `NAME_scales`, uint8 [experts, rows, groups], of bias 127.
"""

from __future__ import annotations

import torch

from .base import WeightSource

METHOD = "mxfp4"
_BLOCKS, _SCALES, _BIAS = "_blocks", "_scales", 127
_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = torch.tensor([*_HALF, *(-value for value in _HALF)])


def dense_weights(source: WeightSource, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint by name, the packed ones multiplied out in `dtype`. Raises ModelError."""
    found: dict[str, torch.Tensor] = {}
    for name in source.names():
        if name.endswith(_BLOCKS):
            whole = name.removesuffix(_BLOCKS)
            packed = zip(source.get(name), source.get(whole + _SCALES), strict=True)
            found[whole] = torch.stack([_expert(blocks, scales).to(dtype) for blocks, scales in packed])
        elif not name.endswith(_SCALES):
            found[name] = source.get(name)
    return found


def _expert(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [columns, rows] of one expert."""
    halves = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    values = torch.ldexp(_VALUES[halves.int()], scales.int().unsqueeze(-1) - _BIAS)
    return values.flatten(-2).t().contiguous()

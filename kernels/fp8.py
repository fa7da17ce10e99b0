"""FP8, the 8-bit format of weights, activations and caches: e4m3 without infinities (arXiv 2209.05433)."""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0  # the largest finite number
# Columns of an input, and rows and columns of a weight, that share a scale where scales are by block.
BLOCK = 128

"""Rotary position embedding (arXiv 2104.09864, half-split form) of q and k, and the write of k and v into the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..checks import KernelInputError, check_size
from ..dispatch import Dispatch
from ..fp8 import FP8

_best = Dispatch(__name__, "rope_kv_write")


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm on every head of q and k before the rotation (Qwen3)."""

    q_weight: torch.Tensor  # [head_dim]
    k_weight: torch.Tensor  # [head_dim]
    eps: float


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    head_norm: HeadNorm | None = None,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Rotates q in place; rotates k and writes k and v where `slots` says. A slot of -1 writes nothing.

    qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], contiguous; positions, slots: int64 [T];
    cos_sin: float32 [max_positions, head_dim], cosines in the first half and sines in the second;
    k_cache, v_cache: [num_blocks, num_kv_heads, block_size, head_dim]; slot = block * block_size +
    offset. A cache in float8_e4m3fn receives k and v divided by `kv_scales` and clamped to its range;
    others have scales of 1. k and v within qkv are scratch afterwards. Values of positions and slots are checked
    in debug mode only (`checks.debug`). Raises KernelInputError, a ValueError that names the argument.
    """
    op, tokens, head_dim = "rope_kv_write", len(qkv), k_cache.shape[3]
    if qkv.shape[1] % head_dim or qkv.shape[1] <= 2 * k_cache.shape[1] * head_dim:
        raise KernelInputError(op, "qkv", f"rows of {qkv.shape[1]} do not fit heads of {head_dim}")
    check_size(op, "cos_sin", cos_sin, (len(cos_sin), head_dim))
    check_size(op, "positions", positions, (tokens,))
    check_size(op, "slots", slots, (tokens,))
    check_size(op, "v_cache", v_cache, tuple(k_cache.shape))
    if min(kv_scales) <= 0:
        raise KernelInputError(op, "kv_scales", f"{kv_scales} must be above zero")
    if k_cache.dtype != FP8:
        if kv_scales != (1.0, 1.0):
            raise KernelInputError(
                op, "kv_scales", f"{kv_scales} belong to FP8, the cache is {k_cache.dtype}"
            )
        _best(qkv)(qkv, positions, slots, cos_sin, k_cache, v_cache, head_norm)
    else:
        _best(k_cache)(qkv, positions, slots, cos_sin, k_cache, v_cache, head_norm, kv_scales=kv_scales)

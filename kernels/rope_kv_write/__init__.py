"""Rotary position embedding (arXiv 2104.09864, half-split form) of q and k, and the write of k and v into the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..dispatch import Dispatch

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
    others have scales of 1. k and v within qkv are scratch afterwards. Positions and slots are not checked.
    """
    if qkv.shape[1] % k_cache.shape[3] or cos_sin.shape[1] != k_cache.shape[3]:
        raise ValueError(
            f"rope_kv_write: qkv rows of {qkv.shape[1]} and cos_sin of {cos_sin.shape[1]} do not fit "
            f"heads of {k_cache.shape[3]}"
        )
    if k_cache.dtype != torch.float8_e4m3fn:
        if kv_scales != (1.0, 1.0):
            raise ValueError(f"rope_kv_write: scales {kv_scales} belong to FP8, the cache is {k_cache.dtype}")
        _best(qkv)(qkv, positions, slots, cos_sin, k_cache, v_cache, head_norm)
    else:
        _best(k_cache)(qkv, positions, slots, cos_sin, k_cache, v_cache, head_norm, kv_scales=kv_scales)

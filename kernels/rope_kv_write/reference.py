"""Plain torch, any device and dtype."""

from __future__ import annotations

import torch

from ..fp8 import FP8, FP8_MAX
from . import HeadNorm


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    head_norm: HeadNorm | None,
    *,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    _, num_kv_heads, block_size, head_dim = k_cache.shape
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    rotated = heads[:, :-num_kv_heads]  # q and k
    if head_norm is not None:
        num_heads = rotated.shape[1] - num_kv_heads
        weights = torch.cat(
            [head_norm.q_weight.expand(num_heads, -1), head_norm.k_weight.expand(num_kv_heads, -1)]
        )
        wide = rotated.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + head_norm.eps)
        rotated.copy_(weights * wide.to(qkv.dtype))
    cos, sin = cos_sin[positions].to(qkv.dtype).unsqueeze(1).chunk(2, dim=-1)
    low, high = rotated.chunk(2, dim=-1)
    rotated.copy_(torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1))
    kept = slots >= 0
    block, offset = slots[kept] // block_size, slots[kept] % block_size
    keys, values = heads[kept, -2 * num_kv_heads : -num_kv_heads], heads[kept, -num_kv_heads:]
    if k_cache.dtype == FP8:
        keys, values = (
            (x.float() / s).clamp(-FP8_MAX, FP8_MAX) for x, s in zip((keys, values), kv_scales, strict=True)
        )
    for cache, new in ((k_cache, keys), (v_cache, values)):
        held, narrow = cache, new.to(cache.dtype)
        if cache.itemsize == 1:  # torch moves no FP8 by index
            held, narrow = cache.view(torch.uint8), narrow.view(torch.uint8)
        held[block, :, offset] = narrow

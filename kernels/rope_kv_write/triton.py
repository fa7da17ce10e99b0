"""Triton on CUDA: a program turns one head of one token; those of k and v also write the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks
from . import HeadNorm


@triton.jit(do_not_specialize=["positions", "slots"])
def rope_kv_write_kernel(
    qkv, positions, slots, cos_sin, k_cache, v_cache, q_weight, k_weight,
    k_scale, v_scale, eps, row_stride, num_heads, num_kv_heads, block_size,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Grid (T, num_heads + 2 * num_kv_heads). HALF is HEAD_DIM / 2 rounded up to a power of two."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = HEAD_DIM // 2
    columns = tl.arange(0, HALF)
    mask = columns < half
    source = qkv + token * row_stride + head * HEAD_DIM + columns
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
    is_value = head >= num_heads + num_kv_heads
    is_key = (head >= num_heads) & (head < num_heads + num_kv_heads)
    if not is_value:
        if HAS_NORM:
            scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / HEAD_DIM + eps)
            weight = q_weight
            if is_key:
                weight = k_weight
            low = low * scale * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
            high = high * scale * tl.load(weight + half + columns, mask=mask, other=0.0).to(tl.float32)
        place = cos_sin + tl.load(positions + token) * HEAD_DIM + columns
        cos = tl.load(place, mask=mask, other=0.0)
        sin = tl.load(place + half, mask=mask, other=0.0)
        turned = low * cos - high * sin
        high = high * cos + low * sin
        low = turned
    if head < num_heads:
        tl.store(source, low.to(qkv.dtype.element_ty), mask=mask)
        tl.store(source + half, high.to(qkv.dtype.element_ty), mask=mask)
        return
    slot = tl.load(slots + token)
    if slot < 0:
        return
    cache, divisor, kv_head = k_cache, k_scale, head - num_heads
    if is_value:
        cache, divisor, kv_head = v_cache, v_scale, head - num_heads - num_kv_heads
    block = slot // block_size
    target = cache + ((block * num_kv_heads + kv_head) * block_size + slot % block_size) * HEAD_DIM + columns
    if k_cache.dtype.element_ty == tl.float8e4nv:
        low = tl.clamp(low / divisor, -448.0, 448.0)
        high = tl.clamp(high / divisor, -448.0, 448.0)
    tl.store(target, low.to(k_cache.dtype.element_ty), mask=mask)
    tl.store(target + half, high.to(k_cache.dtype.element_ty), mask=mask)


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
    """As the op. Raises KernelInputError."""
    op, device = "rope_kv_write", qkv.device
    checks.check_tensor(op, "qkv", qkv, device, checks.HALVES)
    checks.check_tensor(op, "positions", positions, device, checks.LONGS, whole=True)
    checks.check_tensor(op, "slots", slots, device, checks.LONGS, whole=True)
    checks.check_tensor(op, "cos_sin", cos_sin, device, (torch.float32,), whole=True)
    checks.check_tensor(op, "k_cache", k_cache, device, checks.CACHES, whole=True)
    checks.check_tensor(op, "v_cache", v_cache, device, (k_cache.dtype,), whole=True)
    if checks.debugging():
        checks.check_range(op, "slots", slots, -1, k_cache.shape[0] * k_cache.shape[2])
        checks.check_range(op, "positions", positions, 0, len(cos_sin))
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    heads = qkv.shape[1] // head_dim
    if not len(qkv):
        return
    weights = (
        (head_norm.q_weight, head_norm.k_weight, head_norm.eps) if head_norm else (cos_sin, cos_sin, 0.0)
    )
    rope_kv_write_kernel[(qkv.shape[0], heads)](
        qkv, positions, slots, cos_sin, k_cache, v_cache, weights[0], weights[1],
        *kv_scales, weights[2], qkv.stride(0), heads - 2 * num_kv_heads, num_kv_heads, block_size,
        HEAD_DIM=head_dim, HALF=triton.next_power_of_2(head_dim // 2), HAS_NORM=head_norm is not None,
        num_warps=1,
    )  # fmt: skip

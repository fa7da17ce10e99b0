"""Triton on CUDA: a program turns several heads of one token; those of k and v also write the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks, launch
from ..fp8 import FP8_MAX
from . import HeadNorm

LARGEST = tl.constexpr(FP8_MAX)
HEADS = 16  # of a program of four warps: 16 bytes a thread with heads of 128


@triton.jit(do_not_specialize=["positions", "slots"])
def rope_kv_write_kernel(
    qkv, positions, slots, cos_sin, k_cache, v_cache, q_weight, k_weight,
    k_scale, v_scale, eps, row_stride, num_heads, num_kv_heads, block_size,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Grid (T, heads of q, k and v / HEADS). HALF is HEAD_DIM / 2 rounded up to a power of two."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half: tl.constexpr = HEAD_DIM // 2
    columns = tl.arange(0, HALF)
    inside = (columns < half)[None, :]
    mask = (head < num_heads + 2 * num_kv_heads)[:, None] & inside
    source = qkv + token * row_stride + head[:, None] * HEAD_DIM + columns[None, :]
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
    is_query, is_value = head < num_heads, head >= num_heads + num_kv_heads
    place = cos_sin + tl.load(positions + token) * HEAD_DIM + columns[None, :]
    turned_low, turned_high = low, high
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / HEAD_DIM + eps)[:, None]
        turned_low = low * scale * head_weight(q_weight, k_weight, is_query, columns, half)
        turned_high = high * scale * head_weight(q_weight + half, k_weight + half, is_query, columns, half)
    cos = tl.load(place, mask=inside, other=0.0)
    sin = tl.load(place + half, mask=inside, other=0.0)
    new_low = turned_low * cos - turned_high * sin
    new_high = turned_high * cos + turned_low * sin
    low = tl.where(is_value[:, None], low, new_low)
    high = tl.where(is_value[:, None], high, new_high)
    mine = mask & is_query[:, None]
    tl.store(source, low.to(qkv.dtype.element_ty), mask=mine)
    tl.store(source + half, high.to(qkv.dtype.element_ty), mask=mine)

    slot = tl.load(slots + token)
    if (slot < 0) | (tl.program_id(1) * HEADS + HEADS <= num_heads):
        return
    if k_cache.dtype.element_ty == tl.float8e4nv:
        divisor = tl.where(is_value, v_scale, k_scale)[:, None]
        low = tl.clamp(low / divisor, -LARGEST, LARGEST)
        high = tl.clamp(high / divisor, -LARGEST, LARGEST)
    kv_head = head - tl.where(is_value, num_heads + num_kv_heads, num_heads)
    row = (slot // block_size * num_kv_heads + kv_head) * block_size + slot % block_size
    target = row[:, None] * HEAD_DIM + columns[None, :]
    is_key = ~is_query & ~is_value
    write(k_cache + target, low, high, half, mask & is_key[:, None])
    write(v_cache + target, low, high, half, mask & is_value[:, None])


@triton.jit
def head_weight(q_weight, k_weight, is_query, columns, half: tl.constexpr):
    """float32 [heads, columns]: the norm's weight of each head."""
    of_q = tl.load(q_weight + columns, mask=columns < half, other=0.0).to(tl.float32)
    of_k = tl.load(k_weight + columns, mask=columns < half, other=0.0).to(tl.float32)
    return tl.where(is_query[:, None], of_q[None, :], of_k[None, :])


@triton.jit
def write(target, low, high, half: tl.constexpr, mask):
    """Both halves of each head, in the cache's dtype."""
    tl.store(target, low.to(target.dtype.element_ty), mask=mask)
    tl.store(target + half, high.to(target.dtype.element_ty), mask=mask)


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
    for name, weight in (
        (("q_weight", head_norm.q_weight), ("k_weight", head_norm.k_weight)) if head_norm else ()
    ):
        checks.check_tensor(op, f"head_norm.{name}", weight, device, checks.HALVES, whole=True)
        checks.check_size(op, f"head_norm.{name}", weight, (k_cache.shape[3],))
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
    rope_kv_write_kernel[(qkv.shape[0], launch.cdiv(heads, HEADS))](
        qkv, positions, slots, cos_sin, k_cache, v_cache, weights[0], weights[1],
        *kv_scales, weights[2], qkv.stride(0), heads - 2 * num_kv_heads, num_kv_heads, block_size,
        HEAD_DIM=head_dim, HALF=launch.next_power_of_2(head_dim // 2), HEADS=HEADS,
        HAS_NORM=head_norm is not None, num_warps=4,
    )  # fmt: skip

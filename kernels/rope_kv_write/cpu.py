"""float32 on a CPU."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import carray

from ..native.jit import jit, worker
from ..native.mathematics import sum_of_squares
from ..native.team import Job, ready, take
from ..native.vector import pointer
from . import HeadNorm

TOKENS = 8  # rotated as one task


@jit()
def _rotate(head: int, dim: int, angles: int, norm: int, eps: float, target: int) -> None:
    """The head of `dim` floats, normalised if `norm` is not 0, and rotated, written to `target` (may be head)."""
    half = dim // 2
    low, high = (
        carray(pointer(head), (half,), np.float32),
        carray(pointer(head + half * 4), (half,), np.float32),
    )
    if norm != 0:
        whole = carray(pointer(head), (dim,), np.float32)
        weight = carray(pointer(norm), (dim,), np.float32)
        mean = sum_of_squares(whole) / np.float32(dim)
        factor = np.float32(1.0) / np.float32(math.sqrt(mean + np.float32(eps)))
        for i in range(dim):
            whole[i] = whole[i] * factor * weight[i]
    cos, sin = (
        carray(pointer(angles), (half,), np.float32),
        carray(pointer(angles + half * 4), (half,), np.float32),
    )
    first = carray(pointer(target), (half,), np.float32)
    second = carray(pointer(target + half * 4), (half,), np.float32)
    for i in range(half):
        a, b = low[i], high[i]
        first[i] = a * cos[i] - b * sin[i]
        second[i] = b * cos[i] + a * sin[i]


@jit()
def _token(
    row: int, heads: int, kv_heads: int, dim: int, block_size: int, angles: int, slot: int,
    q_norm: int, k_norm: int, eps: float, k_cache: int, v_cache: int,
) -> None:  # fmt: skip
    """One row of qkv: heads of q, then kv_heads each of k and v."""
    for head in range(heads):
        place = row + head * dim * 4
        _rotate(place, dim, angles, q_norm, eps, place)
    if slot < 0:
        return
    block, offset = slot // block_size, slot % block_size
    for head in range(kv_heads):
        to = ((block * kv_heads + head) * block_size + offset) * dim * 4
        _rotate(row + (heads + head) * dim * 4, dim, angles, k_norm, eps, k_cache + to)
        source = carray(pointer(row + (heads + kv_heads + head) * dim * 4), (dim,), np.float32)
        target = carray(pointer(v_cache + to), (dim,), np.float32)
        for i in range(dim):
            target[i] = source[i]


@worker
def _work(control: int, arguments: int) -> None:
    """Tasks are TOKENS tokens each."""
    given = carray(pointer(arguments), (14,), np.int64)
    count, qkv, heads, kv_heads, dim, block_size = given[0], given[1], given[2], given[3], given[4], given[5]
    angles, q_norm, k_norm, k_cache, v_cache = given[8], given[9], given[10], given[12], given[13]
    eps = carray(pointer(arguments + 11 * 8), (1,), np.float64)[0]
    position = carray(pointer(given[6]), (count,), np.int64)
    slot = carray(pointer(given[7]), (count,), np.int64)
    width = (heads + 2 * kv_heads) * dim
    first = take(control, TOKENS)
    if first < count:
        ready(control)
    while first < count:
        for token in range(first, min(first + TOKENS, count)):
            row, turn = qkv + token * width * 4, angles + position[token] * dim * 4
            _token(
                row, heads, kv_heads, dim, block_size, turn, slot[token], q_norm, k_norm, eps, k_cache, v_cache
            )  # fmt: skip
        first = take(control, TOKENS)


_job = Job(_work, "qqqqqqqqqqqdqq")


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    head_norm: HeadNorm | None,
) -> None:
    count, width = qkv.shape
    _, kv_heads, block_size, dim = k_cache.shape
    q_norm, k_norm, eps = 0, 0, 0.0
    if head_norm is not None:
        q_norm, k_norm = head_norm.q_weight.data_ptr(), head_norm.k_weight.data_ptr()
        eps = head_norm.eps
    _job(
        count, qkv.data_ptr(), width // dim - 2 * kv_heads, kv_heads, dim, block_size, positions.data_ptr(),
        slots.data_ptr(), cos_sin.data_ptr(), q_norm, k_norm, eps, k_cache.data_ptr(), v_cache.data_ptr(),
    )  # fmt: skip

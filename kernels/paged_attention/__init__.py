"""Causal attention of a mixed batch (decodes and prefill chunks) over a paged cache, read where it lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..dispatch import Dispatch

_best = Dispatch(__name__, "paged_attention")


@dataclass(frozen=True, slots=True)
class Sequences:
    """n sequences of the batch; sequence i owns query rows query_starts[i]:query_starts[i+1].

    Its queries are the last ones of its context_lens[i] tokens; decodes (one query each) come first.
    """

    query_starts: torch.Tensor  # int32 [n + 1]
    context_lens: torch.Tensor  # int32 [n]
    block_tables: torch.Tensor  # int32 [n, max_blocks], rows contiguous, any row stride
    num_decodes: int
    max_query_len: int
    max_context_len: int


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    sequences: Sequences,
    scale: float,
    window: int | None = None,
    out: torch.Tensor | None = None,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:
    """softmax(q k^T * scale) v over each query's own past, itself included.

    q: [T, num_heads * head_dim], rows contiguous, any row stride (a slice of qkv); k_cache, v_cache:
    [num_blocks, num_kv_heads, block_size, head_dim]; `window` keeps the last so many positions.
    Caches in float8_e4m3fn hold K and V divided by `kv_scales`; others have scales of 1.
    out: [T, num_heads * head_dim], contiguous, made when not given. Rows of `out` that no sequence
    owns are left as they are, made ones are zero. Cache entries past a context are never read. On the
    CPU a query's bits depend on its own past alone, not on the batch or the chunking. Returns out.
    Raises ValueError on a size mismatch.
    """
    head_dim = k_cache.shape[3]
    if q.shape[1] % (head_dim * k_cache.shape[1]) or k_cache.shape != v_cache.shape:
        raise ValueError(
            f"paged_attention: q rows of {q.shape[1]} do not fit {k_cache.shape[1]} heads of {head_dim}, "
            f"or the caches differ: {tuple(k_cache.shape)}, {tuple(v_cache.shape)}"
        )
    if out is None:
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    if k_cache.dtype != torch.float8_e4m3fn:
        if kv_scales != (1.0, 1.0):
            raise ValueError(
                f"paged_attention: scales {kv_scales} belong to FP8, the cache is {k_cache.dtype}"
            )
        _best(q)(q, k_cache, v_cache, sequences, scale, window, out)
    else:
        _best(k_cache)(q, k_cache, v_cache, sequences, scale, window, out, kv_scales=kv_scales)
    return out

"""Causal attention of a mixed batch (decodes and prefill chunks) over a paged cache, read where it lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..checks import KernelInputError
from ..dispatch import Dispatch
from ..fp8 import FP8

_best = Dispatch(__name__, "paged_attention")

# On a GPU: larger ones leave no registers on any, nor shared memory on one without warpgroup instructions.
LARGEST_HEAD = 256


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
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q k^T * scale) v over each query's own past, itself included.

    q: [T, num_heads * head_dim], rows contiguous, any row stride (a slice of qkv); k_cache, v_cache:
    [num_blocks, num_kv_heads, block_size, head_dim]; `window` keeps the last so many positions, at least one;
    `soft_cap`, above zero, turns scores s into soft_cap * tanh(s / soft_cap) (Gemma 2, arXiv 2408.00118).
    `sinks` [num_heads] are scores that take part in each head's softmax and give nothing (gpt-oss, arXiv
    2508.10925).
    Caches in float8_e4m3fn hold K and V divided by `kv_scales`; others have scales of 1.
    out: [T, num_heads * head_dim], contiguous, made when not given. Rows of `out` that no sequence
    owns are left as they are, made ones are zero. Cache entries past a context are never read. On the
    CPU a query's bits depend on its own past alone, not on the batch or the chunking. Returns out.
    Raises KernelInputError, a ValueError that names the argument.
    """
    _check(q, k_cache, v_cache, window, out, kv_scales, soft_cap, sinks)
    if out is None:
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    is_fp8 = k_cache.dtype == FP8
    scales = {"kv_scales": kv_scales} if is_fp8 else {}
    attend = _best(k_cache if is_fp8 else q)
    attend(q, k_cache, v_cache, sequences, scale, window, out, soft_cap=soft_cap, sinks=sinks, **scales)
    return out


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    window: int | None,
    out: torch.Tensor | None,
    kv_scales: tuple[float, float],
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    op, (_, num_kv_heads, _, head_dim) = "paged_attention", k_cache.shape
    if q.ndim != 2 or q.shape[1] % (head_dim * num_kv_heads):
        raise KernelInputError(
            op, "q", f"is {tuple(q.shape)}: its rows do not fit {num_kv_heads} heads of {head_dim}"
        )
    if k_cache.shape != v_cache.shape:
        raise KernelInputError(
            op, "v_cache", f"is {tuple(v_cache.shape)}: the caches differ, k_cache is {tuple(k_cache.shape)}"
        )
    if out is not None and out.shape != q.shape:
        raise KernelInputError(op, "out", f"is {tuple(out.shape)}, q is {tuple(q.shape)}")
    if k_cache.dtype != FP8 and kv_scales != (1.0, 1.0):
        raise KernelInputError(op, "kv_scales", f"{kv_scales} belong to FP8, the cache is {k_cache.dtype}")
    if min(kv_scales) <= 0:
        raise KernelInputError(op, "kv_scales", f"{kv_scales} must be above zero")
    if window is not None and window < 1:
        raise KernelInputError(op, "window", f"is {window}, must be 1 or more")
    if soft_cap is not None and not 0 < soft_cap < float("inf"):
        raise KernelInputError(op, "soft_cap", f"is {soft_cap}, must be finite and above zero")
    heads = q.shape[1] // head_dim
    if sinks is not None and sinks.shape != (heads,):
        raise KernelInputError(op, "sinks", f"is {tuple(sinks.shape)}, there are {heads} heads")

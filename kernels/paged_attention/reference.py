"""Plain torch, any device and dtype: one sequence at a time, its cache gathered. Slow, and plainly right."""

from __future__ import annotations

import torch

from . import Sequences


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    sequences: Sequences,
    scale: float,
    window: int | None,
    out: torch.Tensor,
    *,
    kv_scales: tuple[float, float] = (1.0, 1.0),
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    _, num_kv_heads, block_size, head_dim = k_cache.shape
    group = q.shape[1] // (head_dim * num_kv_heads)
    starts, contexts = sequences.query_starts.tolist(), sequences.context_lens.tolist()
    for i, context in enumerate(contexts):
        if context == 0:  # padding
            continue
        begin, end = starts[i], starts[i + 1]
        blocks = sequences.block_tables[i, : -(-context // block_size)].long()
        keys, values = (
            cache[blocks].transpose(0, 1).reshape(num_kv_heads, -1, head_dim)[:, :context].float() * kv_scale
            for cache, kv_scale in zip((k_cache, v_cache), kv_scales, strict=True)
        )
        queries = q[begin:end].float().view(end - begin, num_kv_heads, group, head_dim)
        scores = torch.einsum("tngd,nkd->ngtk", queries, keys) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        position = torch.arange(context - (end - begin), context, device=q.device).unsqueeze(1)
        key_position = torch.arange(context, device=q.device)
        hidden = key_position > position
        if window is not None:
            hidden |= key_position <= position - window
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            sink = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, end - begin, 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = scores.softmax(-1)[..., :context]
        attended = torch.einsum("ngtk,nkd->tngd", weights, values)
        out[begin:end] = attended.reshape(end - begin, -1).to(out.dtype)

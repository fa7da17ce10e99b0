"""The dense decoder of the Llama, Mistral, Qwen2 and Qwen3 families: one forward pass over a mixed batch.

The families differ by what their shape says: bias on q, k and v, norms on the heads, sliding windows,
rotary scaling, tied embeddings.
"""

from __future__ import annotations

import torch

from ...kernels.paged_attention import Sequences, paged_attention
from ...kernels.rms_norm import rms_norm
from ...kernels.rope_kv_write import rope_kv_write
from ...kernels.silu_mul import silu_mul
from ..shape import ModelShape
from .base import WeightSource
from .batch import ForwardBatch, PagedCache
from .layers import Loader, Workspace, load_layer
from .rope import cos_sin_table


class DenseDecoder:
    """Implements `Model`. Raises ModelError if a weight is missing or of another size than the shape says."""

    def __init__(
        self, shape: ModelShape, weights: WeightSource, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        load = Loader(weights, device, dtype)
        self._layers = [load_layer(load, shape, index) for index in range(shape.num_layers)]
        self._norm = load.vector("model.norm.weight", shape.hidden_size)
        size = [shape.vocab_size], shape.hidden_size
        tied = shape.tie_word_embeddings or "lm_head.weight" not in load
        self._head = load.linear(["model.embed_tokens" if tied else "lm_head"], *size)
        self._embedding = None if tied else load.tensor("model.embed_tokens.weight", *size[0], size[1])
        self._cos_sin = cos_sin_table(shape, shape.max_position_embeddings).to(device)
        self._scale = shape.head_dim**-0.5
        self._workspace = Workspace(shape, device, dtype)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: PagedCache) -> torch.Tensor:
        """As `Model.forward`."""
        eps = self.shape.rms_norm_eps
        hidden = self._embed(batch.tokens)
        buffers = self._workspace(hidden.shape[0])
        sequences = Sequences(
            batch.query_starts,
            batch.context_lens,
            batch.block_tables,
            batch.num_decodes,
            batch.max_query_len,
            batch.max_context_len,
        )
        for layer, keys, values in zip(self._layers, cache.k, cache.v, strict=True):
            rms_norm(hidden, layer.input_norm, eps, buffers.normed)
            layer.qkv(buffers.normed, buffers.qkv)
            rope_kv_write(
                buffers.qkv, batch.positions, batch.slots, self._cos_sin, keys, values, layer.head_norm
            )
            paged_attention(
                buffers.queries, keys, values, sequences, self._scale, layer.window, buffers.attended
            )
            layer.output(buffers.attended, hidden, accumulate=True)
            rms_norm(hidden, layer.post_norm, eps, buffers.normed)
            layer.gate_up(buffers.normed, buffers.gate_up)
            silu_mul(buffers.gate_up, buffers.activated)
            layer.down(buffers.activated, hidden, accumulate=True)
        wanted = hidden.index_select(0, batch.logit_indices)
        return self._head(rms_norm(wanted, self._norm, eps)).float()

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._embedding is None:
            return self._head.rows(tokens)
        return self._embedding.index_select(0, tokens)

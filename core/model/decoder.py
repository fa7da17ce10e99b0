"""The decoder of the Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE and gpt-oss families: one forward pass over a
mixed batch.

The families differ by what their shape says: bias on q, k and v, norms on the heads, sliding windows, attention
sinks, rotary scaling, tied embeddings, experts.
"""

from __future__ import annotations

import torch

from ...kernels.dispatch import has_numba
from ...kernels.paged_attention import paged_attention
from ...kernels.rope_kv_write import rope_kv_write
from ..arithmetic.shape import ModelShape
from .base import WeightSource
from .batch import ForwardBatch, PagedCache
from .layers import Buffers, Workspace, load_layer
from .recorded import DecodePrograms
from .residual import Residual
from .rope import cos_sin_table
from .weights import Loader


class Decoder:
    """Implements `Model`. Raises ModelError if a weight is missing or of another size than the shape says."""

    def __init__(
        self,
        shape: ModelShape,
        weights: WeightSource,
        device: torch.device,
        dtype: torch.dtype,
        *,
        quantize_fp8: bool = False,
    ) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        load = Loader(weights, device, dtype, quantize_fp8=quantize_fp8)
        self._layers = [load_layer(load, shape, index) for index in range(shape.num_layers)]
        embedding, head = "model.embed_tokens", "lm_head"
        tied = shape.tie_word_embeddings or f"{head}.weight" not in load
        self._head = load.linear(
            {embedding if tied else head: shape.vocab_size},
            shape.hidden_size,
            norm=load.norm("model.norm", shape.hidden_size, shape.rms_norm_eps),
        )
        self._embedding = None
        if not tied:
            self._embedding = load.tensor(f"{embedding}.weight", shape.vocab_size, shape.hidden_size)
        self._cos_sin = cos_sin_table(shape, shape.longest_context).to(device)
        self._scale = shape.head_dim**-0.5
        self._workspace = Workspace(shape, device, dtype)
        self._programs = None
        if device.type == "cpu" and dtype == torch.float32 and has_numba():
            self._programs = DecodePrograms(shape, self._compute)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: PagedCache) -> torch.Tensor:
        """As `Model.forward`."""
        embedded = self._embed(batch.tokens)
        if batch.decodes_only and self._programs is not None:
            logits = self._programs.run(batch, cache, embedded)
            if logits is not None:
                return logits
            self._programs = None
        buffers = self._workspace(len(batch.tokens))
        logits = self._compute(batch, cache, embedded, buffers)
        return logits.float() if batch.logits_out is None else batch.logits_out.copy_(logits)

    def _compute(
        self,
        batch: ForwardBatch,
        cache: PagedCache,
        hidden: torch.Tensor,
        buffers: Buffers,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits from embeddings, which are overwritten; into `logits` if it is given."""
        residual = Residual(hidden)
        sequences = batch.sequences
        attended, activated = buffers.attended, buffers.activated
        last = None if batch.decodes_only else self._layers[-1]
        for layer, keys, values in zip(self._layers, cache.k, cache.v, strict=True):
            scales = layer.kv_scales if keys.itemsize == 1 else (1.0, 1.0)
            residual.read(layer.qkv, buffers.qkv)
            rope_kv_write(
                buffers.qkv,
                batch.positions,
                batch.slots,
                self._cos_sin,
                keys,
                values,
                layer.head_norm,
                scales,
            )
            paged_attention(
                buffers.queries,
                keys,
                values,
                sequences,
                self._scale,
                layer.window,
                attended,
                scales,
                sinks=layer.sinks,
            )
            if layer is last:  # only tokens whose logits are wanted go on
                if not len(batch.logit_indices):
                    return hidden.new_empty((0, self.shape.vocab_size))
                residual.keep(batch.logit_indices)
                attended = attended.index_select(0, batch.logit_indices)
                activated = activated[: len(attended)]
            residual.add(layer.output, attended)
            layer.feed_forward(residual, activated)
        return residual.read(self._head, logits)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._embedding is None:
            return self._head.rows(tokens)
        return self._embedding.index_select(0, tokens)

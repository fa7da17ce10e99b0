"""The layers of a decoder, and the buffers a forward pass works in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels.linear import Linear
from ...kernels.rope_kv_write import HeadNorm
from ..arithmetic.shape import ModelShape
from .families import GPT_OSS
from .feed_forward import FeedForward, load_feed_forward
from .weights import Loader


@dataclass(slots=True)
class DecoderLayer:
    """One layer. q, k and v are one product; the norms belong to the products that read them."""

    qkv: Linear
    head_norm: HeadNorm | None
    output: Linear
    feed_forward: FeedForward
    window: int | None
    sinks: torch.Tensor | None  # [num_heads] attention sinks of gpt-oss
    kv_scales: tuple[float, float]  # what K and V are divided by in an FP8 cache


def load_layer(load: Loader, shape: ModelShape, index: int) -> DecoderLayer:
    """Layer `index` from its Hugging Face names. Raises ModelError."""
    prefix = f"model.layers.{index}"
    attention, eps = f"{prefix}.self_attn", shape.rms_norm_eps
    hidden = shape.hidden_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    head_norm = None
    if shape.qk_norm:
        head_norm = HeadNorm(
            load.vector(f"{attention}.q_norm.weight", shape.head_dim),
            load.vector(f"{attention}.k_norm.weight", shape.head_dim),
            eps,
        )
    has_sinks = shape.architecture == GPT_OSS
    return DecoderLayer(
        qkv=load.linear(
            {f"{attention}.q_proj": q_size, f"{attention}.k_proj": kv_size, f"{attention}.v_proj": kv_size},
            hidden,
            bias=shape.attention_bias,
            norm=load.norm(f"{prefix}.input_layernorm", hidden, eps),
        ),
        head_norm=head_norm,
        output=load.linear(
            {f"{attention}.o_proj": hidden},
            q_size,
            bias=(has_sinks and shape.attention_bias) or f"{attention}.o_proj.bias" in load,
        ),
        feed_forward=load_feed_forward(load, shape, index),
        window=window_of(shape, index),
        sinks=load.vector(f"{attention}.sinks", shape.num_heads) if has_sinks else None,
        kv_scales=load.kv_scales(attention),
    )


def window_of(shape: ModelShape, index: int) -> int | None:
    """Sliding window of a layer in tokens, None for full attention."""
    if shape.sliding_window is None:
        return None
    kinds = shape.raw.get("layer_types")
    if kinds:
        return shape.sliding_window if kinds[index] == "sliding_attention" else None
    return shape.sliding_window if index >= int(shape.raw.get("max_window_layers") or 0) else None


@dataclass(slots=True)
class Buffers:
    """What a layer writes and the next one overwrites: `rows` tokens each."""

    qkv: torch.Tensor
    queries: torch.Tensor  # the part of qkv that attention reads
    attended: torch.Tensor
    activated: torch.Tensor


class Workspace:
    """Buffers kept between forward passes, so that no step pays for fresh pages of memory."""

    def __init__(self, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> None:
        self._q_size = shape.num_heads * shape.head_dim
        self._widths = (
            self._q_size + 2 * shape.num_kv_heads * shape.head_dim,
            self._q_size,
            shape.intermediate_size,
        )
        self._device, self._dtype = device, dtype
        self._storage: list[torch.Tensor] = []
        self._rows = -1
        self._buffers: Buffers | None = None

    def __call__(self, rows: int) -> Buffers:
        """Buffers of exactly `rows` rows; those of earlier calls are overwritten."""
        if self._buffers is None or rows != self._rows:
            self._buffers = self._cut(rows)
            self._rows = rows
        return self._buffers

    def _cut(self, rows: int) -> Buffers:
        if not self._storage or rows * self._widths[0] > self._storage[0].numel():
            self._storage = [
                torch.zeros(rows * width, dtype=self._dtype, device=self._device) for width in self._widths
            ]
        qkv, attended, activated = (
            storage[: rows * width].view(rows, width)
            for storage, width in zip(self._storage, self._widths, strict=True)
        )
        return Buffers(qkv, qkv[:, : self._q_size], attended, activated)

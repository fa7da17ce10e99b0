"""Time of attention from the curves of a sheet: of decodes by what they read, of prompts by what they multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from ...core.arithmetic.products import latent_head_dims
from ...core.arithmetic.quantization import dtype_bytes
from ...core.arithmetic.shape import ModelShape
from ...core.arithmetic.sizes import kv_bytes_per_token_per_layer
from .hardware import HardwareSheet

Curve = TypeVar("Curve")


class AttentionTimer:
    """Times the attention of all layers of one model on one of `tensor_parallel_size` devices."""

    def __init__(
        self, hardware: HardwareSheet, shape: ModelShape, dtype: str, kv_dtype: str, tensor_parallel_size: int
    ) -> None:
        self.shape, tp = shape, tensor_parallel_size
        self._decode = _of_cache(hardware.decode_attention, kv_dtype)
        self._prefill = _of_cache(hardware.prefill_attention, kv_dtype)
        self._heads, self._kv_heads = shape.num_heads / tp, max(1, shape.num_kv_heads // tp)
        self._layer_bytes = kv_bytes_per_token_per_layer(shape, kv_dtype, tp)
        self._bytes_per_us = hardware.memory_bandwidth_gb_s * 1e3 * self._decode.bandwidth_share
        self._flops_per_us = hardware.peak_flops(dtype) / 1e6 * self._prefill.compute_share
        self._window = shape.sliding_window if shape.num_sliding_layers else None
        self._head_dim: float = shape.head_dim
        if shape.kv_lora_rank and shape.caches_latent:  # prompts multiply keys wider than values
            nope, value = latent_head_dims(shape)
            self._head_dim = (nope + shape.rope_head_dim + value) / 2

    def decode_ms(self, contexts: np.ndarray) -> float:
        """Decodes that attend to `contexts` tokens each, [d]."""
        curve, layers, count = self._decode, self.shape.num_kv_layers, len(contexts)
        each = curve.us_per_kv_head * self._kv_heads + curve.us_per_head * self._heads
        tokens = float(contexts.sum())
        read = tokens * layers
        if self._window:
            windowed = float(np.minimum(contexts, self._window).sum())
            read += (windowed - tokens) * self.shape.num_sliding_layers
        fixed_us = layers * (curve.floor_us + count * each)
        return (fixed_us + read * self._layer_bytes / self._bytes_per_us) / 1e3

    def prefill_ms(self, tokens: np.ndarray, starts: np.ndarray) -> float:
        """Chunks of `tokens` each that begin at `starts`, [p]."""
        curve, layers = self._prefill, self.shape.num_kv_layers
        width = self._heads * self._head_dim
        reach = starts + (tokens + 1) / 2
        pairs = float((tokens * reach).sum())
        total = pairs * layers
        if self._window:
            inside = float((tokens * np.minimum(reach, self._window)).sum())
            total += (inside - pairs) * self.shape.num_sliding_layers
        linear_us = curve.floor_us + curve.us_per_mega_element * float(tokens.sum()) * width / 1e6
        return (layers * linear_us + 4 * width * total / self._flops_per_us) / 1e3


def _of_cache(curves: Mapping[str, Curve], kv_dtype: str) -> Curve:
    narrow = curves.get("fp8") if dtype_bytes(kv_dtype) == 1 else None
    return narrow or curves["bfloat16"]

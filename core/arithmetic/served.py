"""A model's shape as this engine holds it, where that is not how its checkpoint or another engine does."""

from __future__ import annotations

from dataclasses import replace

from .products import latent_head_dims
from .quantization import stored_quantization
from .shape import ModelShape


def served_shape(shape: ModelShape, *, on_cpu: bool = False) -> ModelShape:
    """The shape that predicts this engine's memory and steps. Raises ModelError for an unknown storage scheme.

    Weights of a GGUF file, and on a CPU all quantised ones, are multiplied out to the model's dtype when they are
    read, and latent attention caches the keys and values of every head, each as wide as the wider of the two.
    """
    if on_cpu or stored_quantization(shape.raw).embeddings:
        raw = {key: value for key, value in shape.raw.items() if key != "quantization_config"}
        shape = replace(shape, quantization=None, raw=raw)
    if shape.kv_lora_rank and shape.caches_latent:
        nope, value = latent_head_dims(shape)
        width = max(nope + shape.rope_head_dim, value)
        shape = replace(shape, caches_latent=False, num_kv_heads=shape.num_heads, head_dim=width)
    return shape

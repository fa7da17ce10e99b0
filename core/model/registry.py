"""Which class runs an architecture. What is not here goes through the fallback over transformers."""

from __future__ import annotations

from math import inf

import torch

from ..arithmetic.rope_scaling import rope_kind
from ..arithmetic.shape import ModelShape
from ..errors import ModelError
from .base import Model, WeightSource
from .decoder import Decoder
from .families import DENSE, GPT_OSS, MIXTURES, MODEL_TYPES
from .feed_forward import CLAMPED_SWIGLU
from .fp8 import MXFP4
from .rope import SCALINGS

ATTENTION = ("full_attention", "sliding_attention")  # the kinds of layers


def obstacle(shape: ModelShape) -> str | None:
    """Why the project's own definitions cannot run a model, None if they can."""
    raw, scaling = shape.raw, shape.rope_scaling or {}
    kind = rope_kind(scaling)
    if shape.architecture not in DENSE | MIXTURES:
        return f"architecture {shape.architecture}"
    if str(raw.get("model_type", "llama")) not in MODEL_TYPES:
        return f"model type {raw['model_type']}"
    if shape.num_experts and shape.architecture not in MIXTURES:
        return "a mixture of experts"
    if shape.num_experts and not 0 < shape.experts_per_token <= shape.num_experts:
        return f"a choice of {shape.experts_per_token} of {shape.num_experts} experts"
    kinds = raw.get("layer_types")
    if kinds and (len(kinds) < shape.num_layers or any(kind not in ATTENTION for kind in kinds)):
        return f"layer_types that are not {shape.num_layers} of {' and '.join(ATTENTION)}"
    if kind is not None and kind not in SCALINGS:
        return f"rope scaling {kind!r}"
    rope = raw.get("rope_parameters") or {}
    if (rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        return "a partial rotary embedding"
    if raw.get("hidden_act", "silu") != "silu":
        return f"activation {raw['hidden_act']!r}"
    if raw.get("use_qk_norm") and "Qwen3" not in shape.architecture:
        return "norms of queries and keys"
    if raw.get("mlp_bias"):
        return "a bias in the feed-forward layers"
    if shape.architecture == GPT_OSS:
        return _obstacle_of_gpt_oss(shape)
    return "weights in MXFP4" if shape.quantization == MXFP4 else None


def _obstacle_of_gpt_oss(shape: ModelShape) -> str | None:
    """The experts' kernels read them packed alone; what a config.json leaves out has other defaults than elsewhere."""
    if shape.quantization != MXFP4:
        return "experts that are not in MXFP4"
    for keys in (("layer_types",), ("rope_parameters", "rope_scaling")):
        if not any(shape.raw.get(key) for key in keys):
            return f"a config.json without {' and '.join(keys)}"
    for key, default in CLAMPED_SWIGLU.items():
        value = shape.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            return f"{key} {value!r}"
    return None


def build(
    shape: ModelShape,
    weights: WeightSource,
    device: torch.device,
    dtype: torch.dtype,
    *,
    quantize_fp8: bool = False,
) -> Model:
    """The model with its weights on the device, those of its layers in FP8 with `quantize_fp8`.

    Raises ModelError when the architecture is not one of the project's own, or a weight is missing or
    of another size than the shape says.
    """
    reason = obstacle(shape)
    if reason is not None:
        raise ModelError(f"{shape.name}: {reason} is not among the project's own model definitions")
    return Decoder(shape, weights, device, dtype, quantize_fp8=quantize_fp8)

"""Element types and storage schemes of weights: how many bytes a number takes, and what multiplies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError
from ..wording import nearest

DTYPE_BYTES: dict[str, float] = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "fp8": 1,
    "fp8_e4m3": 1, "fp8_e5m2": 1, "float8_e4m3fn": 1, "nvfp4": 0.5625,
}  # fmt: skip


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element of a dtype, by the names that configurations use. Raises ModelError."""
    try:
        return DTYPE_BYTES[dtype.removeprefix("torch.")]
    except KeyError:
        raise ModelError(f"dtype {dtype!r} is not known; known are {', '.join(DTYPE_BYTES)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How a checkpoint stores its linear weights. `bits` counts scales and zero points too."""

    name: str
    bits: float | None  # per element; None keeps the dtype
    activations: str = "bfloat16"  # what the matrix units multiply in: "bfloat16", "fp8", "int8"
    experts_only: bool = False  # attention and router stay in the dtype
    embeddings: bool = False  # embedding and head are stored in `bits` as well (GGUF)


UNQUANTIZED = Quantization(name="none", bits=None)

# Group sizes are the usual ones: 128 for AWQ and GPTQ (16-bit scale, 4-bit zero), 32 for MXFP4 and GGUF.
_SCHEMES = {
    scheme.name: scheme
    for scheme in (
        UNQUANTIZED,
        Quantization(name="fp8", bits=8, activations="fp8"),
        Quantization(name="int8", bits=8, activations="int8"),
        Quantization(name="int8_weights", bits=8.125),
        Quantization(name="int4", bits=4 + 20 / 128),
        Quantization(name="bnb4", bits=4 + 16 / 64),
        Quantization(name="mxfp4", bits=4.25, experts_only=True),
        Quantization(name="nvfp4", bits=4.5, activations="fp8"),
        Quantization(name="q8_0", bits=8.5, embeddings=True),
        Quantization(name="q6_k", bits=6.5625, embeddings=True),
        Quantization(name="q5_k_m", bits=5.67, embeddings=True),
        Quantization(name="q4_k_m", bits=4.85, embeddings=True),
        Quantization(name="q4_0", bits=4.5, embeddings=True),
    )
}
_ALIASES = {
    "fbgemm_fp8": "fp8", "modelopt": "fp8", "ptpc_fp8": "fp8", "w8a8_fp8": "fp8", "fp8_per_tensor": "fp8",
    "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "auto-round": "int4",
    "moe_wna16": "int4", "bitsandbytes": "bnb4", "modelopt_fp4": "nvfp4", "experts_int8": "int8_weights",
    "gpt_oss_mxfp4": "mxfp4", "w8a8": "int8", "w8a8_int8": "int8", "gguf": "q4_k_m", "ascend": "int8",
    "fp8_per_block": "fp8", "fp8_per_channel": "fp8", "deepseek_v4_fp8": "fp8", "deepspeedfp": "fp8",
    "mxfp8": "fp8", "modelopt_mxfp8": "fp8", "tpu_int8": "int8", "int8_per_channel_weight_only": "int8_weights",
    "rtn": "int8_weights", "auto_awq": "int4", "cpu_awq": "int4", "auto_gptq": "int4", "gptq_bitblas": "int4",
    "gptq_marlin_24": "int4", "bitblas": "int4", "marlin": "int4", "hqq": "int4", "qqq": "int4", "inc": "int4",
    "ipex": "int4", "squeezellm": "int4", "petit_nvfp4": "nvfp4", "nvfp4_per_token": "nvfp4",
}  # fmt: skip

# Methods that only name a file format: bits and types stand in the checkpoint.
DESCRIBED_BY_CHECKPOINT = ("compressed-tensors", "quark", "torchao", "modelopt_mixed", "online")


def quantization_named(name: str | None) -> Quantization:
    """The storage scheme that a `quantization` value stands for. Raises ModelError."""
    key = (name or "none").lower()
    if key in DESCRIBED_BY_CHECKPOINT:  # most checkpoints of these are FP8
        return _SCHEMES["fp8"]
    scheme = _SCHEMES.get(_ALIASES.get(key, key))
    if scheme is None:
        known = sorted({*_SCHEMES, *_ALIASES, *DESCRIBED_BY_CHECKPOINT})
        raise ModelError(f"quantization {name!r}: known are {', '.join(known)}{nearest(key, known)}")
    return scheme


def stored_quantization(config: Mapping[str, Any], override: str | None = None) -> Quantization:
    """The scheme of a checkpoint: `override` (the `quantization` key of a configuration) or its own.

    `config` is its `config.json`; compressed-tensors states bits and type per group of layers.
    Raises ModelError for an unknown scheme, and for a description that cannot be read.
    """
    try:
        return _stored(config, override)
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"quantization_config of config.json: unusable: {error}") from error


def _stored(config: Mapping[str, Any], override: str | None) -> Quantization:
    stored = config.get("quantization_config") or config.get("compression_config") or {}
    own = stored.get("quant_method")
    method = own if own and override in DESCRIBED_BY_CHECKPOINT else override or own
    if method == "compressed-tensors":
        return _compressed_tensors(stored)
    scheme = quantization_named(method)
    bits = int(stored.get("bits") or stored.get("w_bit") or 0)
    if scheme.name == "int4" and bits == 8:
        return _SCHEMES["int8_weights"]
    if method == "bitsandbytes" and stored.get("load_in_8bit"):
        return _SCHEMES["int8_weights"]
    return scheme


def _compressed_tensors(stored: Mapping[str, Any]) -> Quantization:
    groups = stored.get("config_groups") or {}
    group = next(iter(groups.values()), {})
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    bits, kind = int(weights.get("num_bits") or 8), str(weights.get("type") or "float")
    if bits == 4:
        return _SCHEMES["nvfp4" if kind == "float" else "int4"]
    if kind == "float":
        return _SCHEMES["fp8"]
    return _SCHEMES["int8" if inputs else "int8_weights"]

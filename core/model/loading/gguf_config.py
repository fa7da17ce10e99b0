"""A Hugging Face `config.json` and `generation_config.json` from the metadata of a GGUF file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelError
from .gguf import ARCHITECTURES, architecture, field

if TYPE_CHECKING:
    from gguf import GGUFReader


def config_from_gguf(reader: GGUFReader, file: Path) -> dict[str, Any]:
    """What `config.json` would hold, for weights dequantised to float32. Raises ModelError."""
    arch = architecture(reader, file)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def value(key: str, default: Any = None) -> Any:
        found = field(reader, f"{arch}.{key}", default)
        if found is None:
            raise ModelError(f"{file}: the metadata key '{arch}.{key}' is missing")
        return _shortest(found) if isinstance(found, float) else found

    if "token_embd.weight" not in tensors:
        raise ModelError(f"{file}: tensor 'token_embd.weight' is missing")
    hidden, heads = value("embedding_length"), value("attention.head_count")
    theta = value("rope.freq_base", 10000.0)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_size": hidden,
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": value("attention.key_length", hidden // heads),
        "intermediate_size": value("feed_forward_length"),
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "dtype": "float32",
        **_special_ids(reader),
    }
    if arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    scaling = _rope_scaling(reader, file, arch, config)
    if scaling:
        config["rope_parameters"] = {"rope_theta": theta, **scaling}
    return config


def generation_config_from_gguf(reader: GGUFReader) -> dict[str, Any]:
    """What `generation_config.json` would hold: the special ids."""
    return _special_ids(reader)


def _shortest(value: float) -> float:
    """The double with the shortest decimal form that is the same float32: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))


def _special_ids(reader: GGUFReader) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    for name, key in (("bos", "bos_token_id"), ("pad", "padding_token_id")):
        found = field(reader, f"tokenizer.ggml.{key}")
        if found is not None:
            ids[f"{name}_token_id"] = int(found)
    # Chat models of llama 3's kind end a turn with a token of its own.
    ends = [field(reader, f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    distinct = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if distinct:
        ids["eos_token_id"] = distinct[0] if len(distinct) == 1 else distinct
    return ids


def _rope_scaling(reader: GGUFReader, file: Path, arch: str, config: dict[str, Any]) -> dict[str, Any] | None:
    freqs = next((tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
    if freqs is not None:
        return _llama3_scaling(np.asarray(freqs.data, dtype=np.float64), file, config)
    kind = field(reader, f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = float(field(reader, f"{arch}.rope.scaling.factor", 0.0))
    original = field(reader, f"{arch}.rope.scaling.original_context_length")
    if kind == "linear" and factor > 0:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and factor > 0 and original:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(original)}
    raise ModelError(f"{file}: rope scaling {kind!r} is not supported; use the model's safetensors instead")


def _llama3_scaling(divisors: np.ndarray, file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Llama 3.1's scaling, recovered from the divisor of each frequency that GGUF stores instead of it.

    The family has used factors 8 and 32 with low 1, high 4 and an original context of 8,192; the
    divisors are computed again from what was recovered and must agree, else the file is refused.
    """
    scaling = {
        "rope_type": "llama3",
        "factor": float(f"{divisors.max():.5g}"),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if not np.allclose(
        _llama3_divisors(scaling, config["rope_theta"], config["head_dim"]), divisors, rtol=1e-4
    ):
        raise ModelError(
            f"{file}: 'rope_freqs.weight' is not llama 3's scaling; use the model's safetensors instead"
        )
    return scaling


def _llama3_divisors(scaling: dict[str, Any], theta: float, head_dim: int) -> np.ndarray:
    """float64 [head_dim / 2]: by what each inverse frequency is divided (llama-models, apply_scaling)."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)

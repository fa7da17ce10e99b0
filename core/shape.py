"""A model's shape, read from its `config.json`: everything that arithmetic needs, nothing that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Shapes of a decoder-only transformer. Sizes are in elements, not bytes."""

    name: str
    architecture: str  # "LlamaForCausalLM", ...
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    attention_bias: bool = False  # bias on the q, k and v projections
    qk_norm: bool = False  # RMSNorm on each head of q and k (Qwen3)
    sliding_window: int | None = None
    num_experts: int = 0  # 0 is dense
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = True
    dtype: str = "bfloat16"
    quantization: str | None = None  # quant_method of the checkpoint
    eos_token_ids: tuple[int, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def read_shape(path: str | Path) -> ModelShape:
    """Shape of the model in a folder, or of one `config.json`. Raises ModelError."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        raw = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{file}: no such file; a model folder needs a config.json") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not readable as JSON: {error}") from error
    return shape_from_config(raw, name=file.parent.name)


def shape_from_config(raw: Mapping[str, Any], name: str = "") -> ModelShape:
    """Shape from the mapping that a `config.json` holds. Raises ModelError naming the missing key."""
    text = raw.get("text_config", raw)
    try:
        hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        architecture = (raw.get("architectures") or text.get("architectures") or [text["model_type"]])[0]
        rope = dict(text.get("rope_parameters") or text.get("rope_scaling") or {})
        return ModelShape(
            name=name or str(raw.get("_name_or_path", "")),
            architecture=architecture,
            hidden_size=hidden,
            num_layers=int(text["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(text.get("num_key_value_heads") or heads),
            head_dim=int(text.get("head_dim") or hidden // heads),
            intermediate_size=int(text["intermediate_size"]),
            vocab_size=int(text["vocab_size"]),
            max_position_embeddings=int(text.get("max_position_embeddings", 2048)),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or text.get("rope_theta") or 10000.0),
            rope_scaling=rope
            if (rope.get("rope_type") or rope.get("type")) not in (None, "default")
            else None,
            attention_bias=bool(text.get("attention_bias", "Qwen2" in architecture)),
            qk_norm="Qwen3" in architecture,
            sliding_window=text.get("sliding_window") if text.get("use_sliding_window", True) else None,
            num_experts=int(text.get("num_experts") or text.get("num_local_experts") or 0),
            experts_per_token=int(text.get("num_experts_per_tok") or 0),
            moe_intermediate_size=int(text.get("moe_intermediate_size") or text["intermediate_size"]),
            norm_topk_prob=bool(text.get("norm_topk_prob", True)),
            dtype=str(text.get("dtype") or text.get("torch_dtype") or raw.get("torch_dtype") or "bfloat16"),
            quantization=(raw.get("quantization_config") or {}).get("quant_method"),
            eos_token_ids=_ids(raw.get("eos_token_id", text.get("eos_token_id"))),
            raw=raw,
        )
    except KeyError as error:
        raise ModelError(f"{name or 'config.json'}: the key {error} is missing") from error
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, IndexError) as error:
        raise ModelError(f"{name or 'config.json'}: unusable value: {error}") from error


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)  # type: ignore[arg-type]

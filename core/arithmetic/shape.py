"""A model's shape, read from its `config.json`: everything that arithmetic needs, nothing that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..json_files import read_json
from .rope_scaling import CHANGING_ROPES, rope_kind, rope_of

LARGEST = 10**9  # of every size and count


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
    qk_norm: bool = False  # RMSNorm on q and k, as in Qwen3
    sliding_window: int | None = None
    num_sliding_layers: int = 0  # layers whose attention sees only `sliding_window` tokens
    num_linear_layers: int = 0  # layers that keep a fixed state and no KV cache
    kv_lora_rank: int = 0  # latent attention (MLA) caches this and `rope_head_dim`; 0 is ordinary attention
    rope_head_dim: int = 0
    caches_latent: bool = True  # of latent attention; False where keys and values of every head are cached
    num_experts: int = 0  # 0 is dense
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_size: int = 0  # intermediate size of the experts that every token visits
    num_dense_layers: int = 0  # of a mixture of experts: layers with an ordinary MLP
    dtype: str = "bfloat16"
    quantization: str | None = None  # quant_method of the checkpoint
    eos_token_ids: tuple[int, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep a KV cache."""
        return self.num_layers - self.num_linear_layers

    @property
    def num_moe_layers(self) -> int:
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def longest_context(self) -> int:
        """Positions that can be served: those the model was made for and those its rope scaling adds (as vLLM
        derives max_model_len), but none at which the scaling would change the angles of all earlier ones.
        """
        scaling, longest = self.rope_scaling or {}, self.max_position_embeddings
        kind, factor = rope_kind(scaling), scaling.get("factor")
        original = int(scaling.get("original_max_position_embeddings") or longest)
        if kind in CHANGING_ROPES:
            return min(longest, original)
        return max(longest, int(original * factor)) if kind in ("yarn", "linear") and factor else longest


def read_shape(path: str | Path) -> ModelShape:
    """Shape of the model in a folder, or of one `config.json`. Raises ModelError."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
        if not file.exists():
            raise ModelError(f"{file}: no such file; a model folder needs a config.json")
    return shape_from_config(read_json(file, strict=False), name=file.parent.name)


def shape_from_config(raw: Mapping[str, Any], name: str = "") -> ModelShape:
    """Shape from the mapping that a `config.json` holds. Raises ModelError naming the missing key."""
    text = raw.get("text_config", raw)
    try:
        hidden, heads = _size(text, "hidden_size"), _size(text, "num_attention_heads")
        architecture = _architecture(raw, text)
        theta, scaling = rope_of(text)
        shape = ModelShape(
            name=name or str(raw.get("_name_or_path", "")),
            architecture=architecture,
            hidden_size=hidden,
            num_layers=_size(text, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(text, "num_key_value_heads") if text.get("num_key_value_heads") else heads,
            head_dim=_size(text, "head_dim") if text.get("head_dim") else max(1, hidden // heads),
            intermediate_size=_size(text, "intermediate_size"),
            vocab_size=_size(text, "vocab_size"),
            max_position_embeddings=_size(
                {"max_position_embeddings": 2048, **text}, "max_position_embeddings"
            ),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            attention_bias=bool(text.get("attention_bias", "Qwen2" in architecture)),
            qk_norm=bool(text.get("use_qk_norm"))
            or any(name in architecture for name in ("Qwen3", "Gemma3")),
            sliding_window=_count("sliding_window", text.get("sliding_window")) or None
            if text.get("use_sliding_window", True)
            else None,
            **_layer_kinds(text),
            kv_lora_rank=_count("kv_lora_rank", text.get("kv_lora_rank")),
            rope_head_dim=_count("qk_rope_head_dim", text.get("qk_rope_head_dim")),
            num_experts=_num_experts(text),
            experts_per_token=_count(
                "num_experts_per_tok", text.get("num_experts_per_tok") or text.get("experts_per_token")
            ),
            shared_expert_size=_shared_expert_size(text),
            num_dense_layers=_num_dense_layers(text),
            moe_intermediate_size=_count(
                "moe_intermediate_size", text.get("moe_intermediate_size") or text["intermediate_size"]
            ),
            dtype=str(text.get("dtype") or text.get("torch_dtype") or raw.get("torch_dtype") or "bfloat16"),
            quantization=(raw.get("quantization_config") or {}).get("quant_method"),
            eos_token_ids=_ids(raw.get("eos_token_id", text.get("eos_token_id"))),
            raw=raw,
        )
        _size({"longest_context": shape.longest_context}, "longest_context")
        return shape
    except KeyError as error:
        raise ModelError(f"{name or 'config.json'}: the key {error} is missing") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        raise ModelError(f"{name or 'config.json'}: unusable value: {error}") from error


def _architecture(raw: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """The first name of `architectures`, or the model type. Raises KeyError or ValueError."""
    names = raw.get("architectures") or text.get("architectures") or [text["model_type"]]
    if not isinstance(names, list):
        raise ValueError(f"architectures is {names!r}, a list of names is needed")
    return str(names[0])


def _size(text: Mapping[str, Any], key: str) -> int:
    """A size of at least 1. Raises KeyError or ValueError."""
    if (size := _count(key, text[key])) < 1:
        raise ValueError(f"{key} is {text[key]!r}, a number of at least 1 is needed")
    return size


def _count(key: str, value: object) -> int:
    """A whole number, 0 for none. Raises ValueError for one that no model has."""
    count = int(value or 0)  # pyright: ignore[reportArgumentType]
    if isinstance(value, bool) or not 0 <= count <= LARGEST:
        raise ValueError(f"{key} is {value!r}, a number from 0 to {LARGEST:,} is needed")
    return count


def _layer_kinds(text: Mapping[str, Any]) -> dict[str, Any]:
    """How many layers have a window or a fixed state: from `layer_types`, or the older window pattern."""
    types = text.get("layer_types")
    if types:
        return {
            "num_sliding_layers": sum(kind == "sliding_attention" for kind in types),
            "num_linear_layers": sum(kind in ("linear_attention", "mamba") for kind in types),
        }
    layers = _size(text, "num_hidden_layers")
    full = _count("max_window_layers", text.get("max_window_layers"))  # the first so many have no window
    # Gemma 3: each sixth is full.
    pattern = _count("sliding_window_pattern", text.get("sliding_window_pattern"))
    if not text.get("sliding_window") or not text.get("use_sliding_window", True):
        return {}
    return {"num_sliding_layers": layers - (layers // pattern if pattern else min(full, layers))}


def _num_experts(text: Mapping[str, Any]) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((_count(name, text[name]) for name in names if text.get(name)), 0)


def _shared_expert_size(text: Mapping[str, Any]) -> int:
    count, size = (_count(key, text.get(key)) for key in ("n_shared_experts", "moe_intermediate_size"))
    return (
        _count("shared_expert_intermediate_size", text.get("shared_expert_intermediate_size")) or count * size
    )


def _num_dense_layers(text: Mapping[str, Any]) -> int:
    if not _num_experts(text):
        return 0
    layers = _size(text, "num_hidden_layers")
    step, first = (_count(key, text.get(key)) for key in ("decoder_sparse_step", "first_k_dense_replace"))
    return max(layers - layers // (step or 1), len(text.get("mlp_only_layers") or ()), first)


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)  # type: ignore[arg-type]

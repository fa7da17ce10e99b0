"""A model's shape, read from its `config.json`: everything that arithmetic needs, nothing that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ModelError
from .quantization import Quantization, dtype_bytes, stored_quantization
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
    qk_norm: bool = False  # RMSNorm on each head of q and k (Qwen3)
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
    try:
        raw = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{file}: no such file; a model folder needs a config.json") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not readable as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{file}: a JSON object is needed, not {type(raw).__name__}")
    return shape_from_config(raw, name=file.parent.name)


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
            qk_norm="Qwen3" in architecture,
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
    pattern = _count(
        "sliding_window_pattern", text.get("sliding_window_pattern")
    )  # Gemma 3: each sixth is full
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


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matrix product of a forward pass on one device: [tokens, k] x [k, n], `count` times."""

    name: str  # "qkv", "o", "gate_up", "down", "router", "head", "expert_gate_up", ...
    n: int
    k: int
    count: int

    @property
    def elements(self) -> int:
        return self.n * self.k * self.count


def dense_gemms(shape: ModelShape, tensor_parallel_size: int = 1) -> list[Gemm]:
    """Products that every token passes, in order, on one of `tensor_parallel_size` devices; no head, no experts."""
    tp, hidden, layers = tensor_parallel_size, shape.hidden_size, shape.num_layers
    moe = shape.num_moe_layers
    gemms = list(_attention_gemms(shape, tp))
    if layers > moe:
        wide = shape.intermediate_size // tp
        gemms += [
            Gemm("gate_up", 2 * wide, hidden, layers - moe),
            Gemm("down", hidden, wide, layers - moe),
        ]
    if moe:
        gemms.append(Gemm("router", shape.num_experts, hidden, moe))
        if shape.shared_expert_size:
            wide = shape.shared_expert_size // tp
            gemms += [Gemm("shared_gate_up", 2 * wide, hidden, moe), Gemm("shared_down", hidden, wide, moe)]
    return gemms


def _attention_gemms(shape: ModelShape, tp: int) -> list[Gemm]:
    hidden, layers, heads = shape.hidden_size, shape.num_layers, shape.num_heads // tp
    if not shape.kv_lora_rank:
        kv = max(1, shape.num_kv_heads // tp)
        return [
            Gemm("qkv", (heads + 2 * kv) * shape.head_dim, hidden, layers),
            Gemm("o", hidden, heads * shape.head_dim, layers),
        ]
    text = shape.raw.get("text_config", shape.raw)  # latent attention: DeepSeek-V2 report, section 2.1
    rank, rope = shape.kv_lora_rank, shape.rope_head_dim
    nope, value = latent_head_dims(shape)
    query = int(text.get("q_lora_rank") or 0)
    return [
        Gemm("kv_a", rank + rope + query, hidden, layers),
        Gemm("q_b", heads * (nope + rope), query or hidden, layers),
        Gemm("kv_b", heads * (nope + value), rank, layers),
        Gemm("o", hidden, heads * value, layers),
    ]


def latent_head_dims(shape: ModelShape) -> tuple[int, int]:
    """Of latent attention: sizes of a head's key without its rotated part, and of its value."""
    text = shape.raw.get("text_config", shape.raw)
    nope, value = (int(text.get(key) or shape.head_dim) for key in ("qk_nope_head_dim", "v_head_dim"))
    return nope, value


@dataclass(frozen=True, slots=True)
class ExpertSplit:
    """How a model's experts lie on the devices: `whole` ones on each, or a part of every one.

    vLLM spreads experts over the tensor parallel devices of all data parallel copies together, whole ones
    with `enable_expert_parallel` (from 0.8.0 on: fused_moe/layer.py, FusedMoEParallelConfig.make).
    """

    devices: int = 1
    copies: int = 1  # data parallel copies whose tokens meet at these experts
    whole: bool = False

    @property
    def parts(self) -> int:
        """Into how many parts each expert is cut."""
        return 1 if self.whole else self.devices

    def held(self, experts: int) -> int:
        """Experts, or parts of as many, on the fullest device."""
        return -(-experts // self.devices) if self.whole else experts


def expert_split(
    tensor_parallel_size: int = 1, data_parallel_size: int = 1, enable_expert_parallel: bool = False
) -> ExpertSplit:
    """The split over all devices of `data_parallel_size` copies that share one set of experts."""
    return ExpertSplit(tensor_parallel_size * data_parallel_size, data_parallel_size, enable_expert_parallel)


def expert_gemms(shape: ModelShape, tensor_parallel_size: int = 1) -> list[Gemm]:
    """The two products of ONE expert in each layer that has experts; empty for a dense model."""
    if not shape.num_moe_layers:
        return []
    wide, layers = max(1, shape.moe_intermediate_size // tensor_parallel_size), shape.num_moe_layers
    return [
        Gemm("expert_gate_up", 2 * wide, shape.hidden_size, layers),
        Gemm("expert_down", shape.hidden_size, wide, layers),
    ]


def head_gemm(shape: ModelShape, tensor_parallel_size: int = 1) -> Gemm:
    """The product that makes logits, run only for rows that sample."""
    return Gemm("head", -(-shape.vocab_size // tensor_parallel_size), shape.hidden_size, 1)


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of weights on one device, by component."""

    embedding: int
    head: int  # 0 when tied to the embedding
    linear: int  # attention, MLP, router, shared experts
    experts: int
    norms: int  # norms and biases

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.linear + self.experts + self.norms

    def read_by_one_token(self, shape: ModelShape) -> int:
        """Bytes that one token alone reads: every layer, its own experts, and the head once.

        A tied head is the embedding's table; an untied embedding gives a single row, which is nothing.
        """
        experts = self.experts * shape.experts_per_token // max(1, shape.num_experts)
        return self.linear + self.norms + (self.head or self.embedding) + experts


def weight_bytes(
    shape: ModelShape,
    *,
    quantization: Quantization | None = None,
    dtype: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    split: ExpertSplit | None = None,
) -> WeightBytes:
    """Weights on the fullest device. `quantization` None reads the checkpoint's own; `dtype` None the model's.

    split: how experts are spread; None cuts each over the tensor parallel devices. A pipeline stage holds its share of the layers and, counted here, the larger of embedding and head.
    """
    scheme = quantization or stored_quantization(shape.raw)
    element = dtype_bytes(dtype or shape.dtype)
    packed = scheme.bits / 8 if scheme.bits else element
    tp, pp = tensor_parallel_size, pipeline_parallel_size
    linear_element = element if scheme.experts_only and shape.num_experts else packed
    linear = sum(g.elements for g in dense_gemms(shape, tp)) * linear_element
    hidden, multiple = shape.hidden_size, scheme.expert_row_multiple
    padding = -(-hidden // multiple) * multiple / hidden
    split = split or expert_split(tp)
    one_expert = sum(g.elements for g in expert_gemms(shape, split.parts)) * packed * padding
    experts = one_expert * split.held(shape.num_experts)
    table = shape.vocab_size * hidden / tp * (packed if scheme.embeddings else element)
    head = 0.0 if shape.tie_word_embeddings else table
    if pp > 1:
        table, head = max(table, head), 0.0
    biases = sum(g.n * g.count for g in _attention_gemms(shape, tp)[:1]) if shape.attention_bias else 0
    norms = ((2 * shape.num_layers + 1) * hidden + biases) * element
    return WeightBytes(
        embedding=round(table),
        head=round(head),
        linear=round(linear / pp),
        experts=round(experts / pp),
        norms=round(norms / pp),
    )


def resolve_kv_dtype(shape: ModelShape, kv_cache_dtype: str, dtype: str | None = None) -> str:
    """The element type of the cache: `auto` is the model's dtype (or `dtype`, where a configuration says one)."""
    if kv_cache_dtype != "auto":
        return kv_cache_dtype
    return shape.dtype if dtype in (None, "auto") else str(dtype)


def kv_bytes_per_token_per_layer(shape: ModelShape, kv_dtype: str, tensor_parallel_size: int = 1) -> float:
    """Key and value bytes of one token in one layer on one device; KV heads below the parallel size are copied."""
    if shape.kv_lora_rank and shape.caches_latent:
        return (shape.kv_lora_rank + shape.rope_head_dim) * dtype_bytes(kv_dtype)
    heads = max(1, shape.num_kv_heads // tensor_parallel_size)
    return 2 * heads * shape.head_dim * dtype_bytes(kv_dtype)


def kv_bytes_per_token(
    shape: ModelShape, kv_dtype: str, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> int:
    """Cache bytes that one token takes in all layers of one device, no window counted."""
    layers = -(-shape.num_kv_layers // pipeline_parallel_size)
    return round(layers * kv_bytes_per_token_per_layer(shape, kv_dtype, tensor_parallel_size))

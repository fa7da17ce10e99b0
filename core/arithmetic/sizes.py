"""How many bytes a model's weights and a token's keys and values take on one device."""

from __future__ import annotations

from dataclasses import dataclass

from .products import ExpertSplit, attention_gemms, dense_gemms, expert_gemms, expert_split
from .quantization import Quantization, dtype_bytes, stored_quantization
from .shape import ModelShape


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
    packed_row_multiple: int = 1,
) -> WeightBytes:
    """Weights on the fullest device. `quantization` None reads the checkpoint's own; `dtype` None the model's.

    split: how experts are spread; None cuts each over the tensor parallel devices. packed_row_multiple: what rows of
    experts in MXFP4 are padded to. A pipeline stage holds its share of the layers and, counted here, the larger of
    embedding and head.
    """
    scheme = quantization or stored_quantization(shape.raw)
    element = dtype_bytes(dtype or shape.dtype)
    packed = scheme.bits / 8 if scheme.bits else element
    tp, pp = tensor_parallel_size, pipeline_parallel_size
    linear_element = element if scheme.experts_only and shape.num_experts else packed
    linear = sum(g.elements for g in dense_gemms(shape, tp)) * linear_element
    hidden, multiple = shape.hidden_size, packed_row_multiple if scheme.experts_only else 1
    padding = -(-hidden // multiple) * multiple / hidden
    split = split or expert_split(tp)
    one_expert = sum(g.elements for g in expert_gemms(shape, split.parts)) * packed * padding
    experts = one_expert * split.held(shape.num_experts)
    table = shape.vocab_size * hidden / tp * (packed if scheme.embeddings else element)
    head = 0.0 if shape.tie_word_embeddings else table
    if pp > 1:
        table, head = max(table, head), 0.0
    biases = sum(g.n * g.count for g in attention_gemms(shape, tp)[:1]) if shape.attention_bias else 0
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

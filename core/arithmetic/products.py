"""The matrix products of a forward pass on one device, and how experts are spread over devices."""

from __future__ import annotations

from dataclasses import dataclass

from .shape import ModelShape


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
    gemms = list(attention_gemms(shape, tp))
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


def attention_gemms(shape: ModelShape, tp: int) -> list[Gemm]:
    """Products of attention in all layers, in order, on one of `tp` devices; those before queries and keys first."""
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

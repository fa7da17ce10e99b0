"""The second half of a decoder layer: one gated layer for all tokens, or a few experts for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ...kernels.experts import Experts, make_experts, route
from ...kernels.gated_linear import GatedLinear
from ...kernels.linear import InputNorm, Linear
from ...kernels.rms_norm import rms_norm
from ..errors import ModelError
from ..shape import ModelShape

if TYPE_CHECKING:
    from .layers import Loader

MIXTURES = frozenset({"MixtralForCausalLM", "Qwen3MoeForCausalLM"})


class FeedForward(Protocol):
    """Adds its result to hidden [T, hidden_size]; activated [T, intermediate_size] is scratch."""

    def __call__(self, hidden: torch.Tensor, activated: torch.Tensor) -> None: ...


@dataclass(slots=True)
class DenseFeedForward:
    """SwiGLU; the norm belongs to gate and up."""

    gate_up: GatedLinear
    down: Linear

    def __call__(self, hidden: torch.Tensor, activated: torch.Tensor) -> None:
        self.gate_up(hidden, activated)
        self.down(activated, hidden, accumulate=True)


@dataclass(slots=True)
class ExpertFeedForward:
    """The router's `top_k` experts of each token."""

    norm: InputNorm
    router: Linear
    experts: Experts
    top_k: int
    renormalise: bool

    def __call__(self, hidden: torch.Tensor, activated: torch.Tensor) -> None:
        x = rms_norm(hidden, self.norm.weight, self.norm.eps)
        ids, weights = route(self.router(x), self.top_k, renormalise=self.renormalise)
        self.experts(x, ids, weights, hidden)


def load_feed_forward(load: Loader, shape: ModelShape, index: int) -> FeedForward:
    """That of layer `index`, from its Hugging Face names. Raises ModelError."""
    prefix = f"model.layers.{index}"
    norm = load.norm(f"{prefix}.post_attention_layernorm", shape.hidden_size, shape.rms_norm_eps)
    if has_experts(shape, index):
        return _load_experts(load, shape, prefix, norm)
    inner, hidden = shape.intermediate_size, shape.hidden_size
    return DenseFeedForward(
        gate_up=load.gated(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj", inner, hidden, norm),
        down=load.linear({f"{prefix}.mlp.down_proj": hidden}, inner),
    )


def has_experts(shape: ModelShape, index: int) -> bool:
    """Whether layer `index` is a mixture of experts: all of Mixtral's; Qwen3-MoE's config names exceptions."""
    if not shape.num_experts or index in (shape.raw.get("mlp_only_layers") or ()):
        return False
    return (index + 1) % int(shape.raw.get("decoder_sparse_step") or 1) == 0


def _load_experts(load: Loader, shape: ModelShape, prefix: str, norm: InputNorm) -> ExpertFeedForward:
    mixtral = shape.architecture == "MixtralForCausalLM"
    base = f"{prefix}.block_sparse_moe" if mixtral else f"{prefix}.mlp"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    inner, hidden = shape.moe_intermediate_size, shape.hidden_size
    if load.quantize_fp8:
        raise ModelError(f"{shape.name}: experts are not quantised at load; drop quantization: fp8")
    gates, ups, downs = (
        [load.tensor(f"{base}.experts.{i}.{name}.weight", *size) for i in range(shape.num_experts)]
        for name, size in zip(names, ((inner, hidden), (inner, hidden), (hidden, inner)), strict=True)
    )
    return ExpertFeedForward(
        norm=norm,
        router=load.linear({f"{base}.gate": shape.num_experts}, hidden),
        experts=make_experts(gates, ups, downs),
        top_k=shape.experts_per_token,
        renormalise=mixtral or bool(shape.raw.get("norm_topk_prob", False)),
    )

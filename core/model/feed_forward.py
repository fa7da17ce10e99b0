"""The second half of a decoder layer: one gated layer for all tokens, or a few experts for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ...kernels.experts import Experts, route
from ...kernels.gated_linear import GatedLinear
from ...kernels.linear import InputNorm, Linear
from ...kernels.linear.fp8 import Fp8GatedLinear, Fp8Linear
from ..arithmetic.shape import ModelShape
from .families import GPT_OSS
from .residual import Residual
from .weights import Loader

# Of gpt-oss (arXiv 2508.10925): what bounds gate and up, and the slope of the gate's sigmoid; a config.json may say others.
CLAMPED_SWIGLU = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}


class FeedForward(Protocol):
    """Adds its result to the residual; activated [T, intermediate_size] is scratch."""

    def __call__(self, residual: Residual, activated: torch.Tensor) -> None: ...


@dataclass(slots=True)
class DenseFeedForward:
    """SwiGLU; the norm belongs to gate and up."""

    gate_up: GatedLinear
    down: Linear

    def __call__(self, residual: Residual, activated: torch.Tensor) -> None:
        residual.add(self.down, residual.read(self.gate_up, activated))


@dataclass(slots=True)
class Fp8FeedForward:
    """SwiGLU in FP8: the gate is part of quantising what the second product reads."""

    gate_up: Fp8Linear
    down: Fp8Linear

    def __call__(self, residual: Residual, activated: torch.Tensor) -> None:
        residual.owe(self.down(residual.read(self.gate_up), gated=True))


@dataclass(slots=True)
class ExpertFeedForward:
    """The router's `top_k` experts of each token."""

    norm: InputNorm
    router: Linear
    experts: Experts
    top_k: int
    renormalise: bool

    def __call__(self, residual: Residual, activated: torch.Tensor) -> None:
        x = residual.normed(self.norm)
        ids, weights = route(self.router(x), self.top_k, renormalise=self.renormalise)
        self.experts(x, ids, weights, residual.settled())


def load_feed_forward(load: Loader, shape: ModelShape, index: int) -> FeedForward:
    """That of layer `index`, from its Hugging Face names. Raises ModelError."""
    prefix = f"model.layers.{index}"
    norm = load.norm(f"{prefix}.post_attention_layernorm", shape.hidden_size, shape.rms_norm_eps)
    if has_experts(shape, index):
        made = _load_packed_experts if shape.architecture == GPT_OSS else _load_experts
        return made(load, shape, prefix, norm)
    inner, hidden = shape.intermediate_size, shape.hidden_size
    gate_up = load.gated(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj", inner, hidden, norm)
    down = load.linear({f"{prefix}.mlp.down_proj": hidden}, inner)
    if isinstance(gate_up, Fp8GatedLinear) and isinstance(down, Fp8Linear):
        return Fp8FeedForward(gate_up.joined, down)
    return DenseFeedForward(gate_up, down)


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
    each = [[f"{base}.experts.{i}.{name}" for i in range(shape.num_experts)] for name in names]
    return ExpertFeedForward(
        norm=norm,
        router=load.linear({f"{base}.gate": shape.num_experts}, hidden),
        experts=load.experts(each[0], each[1], each[2], inner, hidden),
        top_k=shape.experts_per_token,
        renormalise=mixtral or bool(shape.raw.get("norm_topk_prob", False)),
    )


def _load_packed_experts(load: Loader, shape: ModelShape, prefix: str, norm: InputNorm) -> ExpertFeedForward:
    """Those of gpt-oss: all of a layer in one tensor, everything with a bias."""
    base, inner, hidden = f"{prefix}.mlp", shape.moe_intermediate_size, shape.hidden_size
    limit, alpha = (shape.raw.get(key, default) for key, default in CLAMPED_SWIGLU.items())
    return ExpertFeedForward(
        norm=norm,
        router=load.linear({f"{base}.router": shape.num_experts}, hidden, bias=True),
        experts=load.packed_experts(f"{base}.experts", shape.num_experts, inner, hidden, (limit, alpha)),
        top_k=shape.experts_per_token,
        renormalise=True,
    )

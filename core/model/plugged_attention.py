"""transformers' attention interface over the paged cache: the one function that every layer of a model calls.

It writes keys and values into the cache and attends over block tables, so that a model runs a mixed batch as one
sequence of tokens with their own positions. Outside of a step it only notes what a layer asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ...kernels.fp8 import FP8, FP8_MAX
from ...kernels.paged_attention import Sequences, paged_attention
from ..errors import ModelError
from .batch import ForwardBatch, PagedCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "camshaft_paged"
# Options of the interface that change nothing here; any other one would be lost without a word.
_WITHOUT_EFFECT = frozenset(
    {
        "dropout",  # none in inference
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",  # the rotary embedding has them
        "use_cache",
    }
)


@dataclass(frozen=True, slots=True)
class AskedLayer:
    """What one attention layer asked for. Its cache is as wide as the wider of keys and values."""

    kv_heads: int
    head_dim: int
    window: int | None


@dataclass(slots=True)
class Step:
    """What the attention of one model needs to know of the step that runs; None between steps."""

    batch: ForwardBatch | None = None
    cache: PagedCache | None = None
    sequences: Sequences | None = None
    kept: torch.Tensor | None = None  # int64 [T] the token that each stands for
    block: torch.Tensor | None = None  # int64 [T] where its keys and values go
    offset: torch.Tensor | None = None
    layers: dict[int, AskedLayer] = field(default_factory=dict)

    def begin(self, batch: ForwardBatch, cache: PagedCache) -> None:
        self.batch, self.cache = batch, cache
        self.sequences = batch.sequences
        # Padding stands for the first token and writes the same once more: how much of it there is stays on the device.
        # Nothing but padding runs while nobody holds a block, and writes to the first.
        slots = batch.slots
        self.kept = torch.where(slots >= 0, torch.arange(len(slots), device=slots.device), 0)
        slots = slots[self.kept].clamp_min(0)
        self.block, self.offset = slots // cache.block_size, slots % cache.block_size

    def end(self) -> None:
        self.batch = self.cache = self.sequences = self.kept = self.block = self.offset = None


def plug_into(model: PreTrainedModel) -> Step:
    """Makes every attention layer call our function, and gives it the step it belongs to."""
    register()
    step = Step()
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            object.__setattr__(module, "camshaft_step", step)
    model.set_attn_implementation(NAME)
    return step


def register() -> None:
    """Makes NAME known to transformers."""
    from transformers import AttentionInterface

    # Under a name that has no masks, none is made: block tables say what may be seen.
    AttentionInterface.register(NAME, _attend)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: query [1, heads, T, size], key [1, kv_heads, T, size], value [1, kv_heads, T, width].

    `s_aux` [heads] are attention sinks. Returns [1, T, heads, width].
    """
    step: Step | None = getattr(module, "camshaft_step", None)
    asked = [name for name in options if options[name] is not None and name not in _WITHOUT_EFFECT]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if step is None or asked or attention_mask is not None or not causal:
        what = ", ".join(asked) or "attention that is not causal self-attention"
        raise ModelError(
            f"{type(module).__name__} is not supported: it needs {what}, which paged attention lacks"
        )
    layer = int(module.layer_idx)  # pyright: ignore[reportArgumentType]
    tokens, heads, width = query.shape[2], query.shape[1], value.shape[-1]
    size = max(key.shape[-1], width)  # latent attention's values are narrower than its keys
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if step.batch is None or step.cache is None or step.sequences is None or step.kept is None:
        if layer in step.layers:
            raise ModelError(
                f"{type(module).__name__} is not supported: it attends more than once in a layer, whose cache is one"
            )
        step.layers[layer] = AskedLayer(key.shape[1], size, sliding_window)
        return query.new_empty((1, tokens, heads, width)), None
    caches = step.cache.k[layer], step.cache.v[layer]
    for cached, new in zip(caches, (key, value), strict=True):
        held, kept = _storable(cached, _widen(new, size)[0].transpose(0, 1)[step.kept])
        held[step.block, :, step.offset] = kept
    dtype = value.dtype if caches[0].dtype == FP8 else caches[0].dtype
    rows = _widen(query, size)[0].transpose(0, 1).reshape(tokens, heads * size).to(dtype)
    out = paged_attention(rows, *caches, step.sequences, scale, sliding_window, soft_cap=softcap, sinks=s_aux)
    return out.view(1, tokens, heads, size)[..., :width], None


def _storable(cached: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache and what is new in it, in one dtype that torch moves by index: FP8, whose scale is 1 here, as bytes."""
    if cached.dtype != FP8:
        return cached, new.to(cached.dtype)
    return cached.view(torch.uint8), new.clamp(-FP8_MAX, FP8_MAX).to(FP8).view(torch.uint8)


def _widen(x: torch.Tensor, size: int) -> torch.Tensor:
    """With zeros behind the last dimension, up to a size; they add nothing to a score."""
    return x if x.shape[-1] == size else torch.nn.functional.pad(x, (0, size - x.shape[-1]))

"""The contracts around a model: where weights come from, and what a forward pass is.

`registry.build(shape, weights, device, dtype)` returns a `Model`. The executor knows models and weight sources
only through this page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from ..arithmetic.shape import ModelShape
from .batch import ForwardBatch, PagedCache


class WeightSource(Protocol):
    """Tensors of a checkpoint under their Hugging Face names (`model.layers.0.mlp.up_proj.weight`)."""

    def names(self) -> Iterable[str]:
        """Every tensor name the checkpoint holds."""
        ...

    def get(self, name: str) -> torch.Tensor:
        """The tensor on the CPU in the checkpoint's own dtype (memory-mapped where possible).

        A quantised GGUF tensor arrives dequantised to float32, its rows in Hugging Face order.
        Raises ModelError naming the file and the tensor when it is missing, truncated or corrupt.
        """
        ...


class Model(Protocol):
    """A decoder with its weights on one device."""

    shape: ModelShape
    device: torch.device
    dtype: torch.dtype  # of activations and of the cache

    def forward(self, batch: ForwardBatch, cache: PagedCache) -> torch.Tensor:
        """Writes K and V of the batch's tokens into the cache; returns float32 logits [m, vocab_size].

        Row j belongs to token `batch.logit_indices[j]`. The tensor is `batch.logits_out` where that is
        given, else it may be a buffer that the next call overwrites. Tokens past `query_starts[-1]` are
        padding: they pass through every linear layer, touch neither cache nor attention, and have slot -1.
        """
        ...

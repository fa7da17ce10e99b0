"""How much an executor holds: by prediction before it has run anything, by measurement after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..arithmetic.memory import Measured
from ..model.base import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an executor holds."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int  # of a step
    seed: int = 0
    cache_dtype: torch.dtype | None = None  # of K and V; None is the model's
    capture_sizes: tuple[int, ...] = ()  # decode batches that run as captured graphs
    memory: dict[str, Any] = field(default_factory=dict)  # where the bytes went, for reports


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on its device, with predicted limits."""

    model: Model
    limits: Limits
    fit: Callable[[Measured], Limits] | None = None  # limits by what was measured; None keeps the prediction
    weights_bytes: int = 0  # that the model's tensors take
    others_bytes: int = 0  # of the device's memory, in use before the model was loaded

"""The paged cache's memory: taken once, whole blocks copied where sequences part."""

from __future__ import annotations

import torch

from ..model.base import Model
from ..model.batch import PagedCache
from .limits import Limits


def allocate_cache(model: Model, limits: Limits) -> PagedCache:
    """An empty cache; on a host its pages of memory are taken as they are first written."""
    shape, dtype = model.shape, limits.cache_dtype or model.dtype
    size = (limits.num_blocks, shape.num_kv_heads, limits.block_size, shape.head_dim)

    def layers() -> list[torch.Tensor]:
        return [torch.empty(size, dtype=dtype, device=model.device) for _ in range(shape.num_layers)]

    return PagedCache(layers(), layers(), limits.block_size)


def copy_blocks(cache: PagedCache, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copies whole blocks, integers [k] each on the cache's device, in every layer; all sources are read first."""
    sources, targets = sources.long(), targets.long()
    for layer in (*cache.k, *cache.v):
        held = layer.view(torch.uint8) if layer.itemsize == 1 else layer  # torch moves no FP8 by index
        held.index_copy_(0, targets, held.index_select(0, sources))

"""From a resolved configuration to a model on its device, and how much cache fits beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...kernels.threads import usable_cores
from ..config.hardware import find_hardware
from ..errors import CapacityError, ConfigError
from ..memory import CAMSHAFT_CPU, CAMSHAFT_CUDA, DeviceMemory, MemoryBudget, MemorySettings, memory_budget
from ..model.base import Model
from ..model.loading.hub import locate
from ..model.registry import obstacle
from ..model.select import model_shape, open_model
from ..shape import ModelShape
from .torch_executor import Limits

if TYPE_CHECKING:
    from ..config import ServeConfig

GIB = 1 << 30
FP8_CACHES = ("fp8", "fp8_e4m3")
CPU_CACHE_BYTES = 4 * GIB  # unless the configuration says more: a host's memory is not the engine's alone


def load_model(config: ServeConfig) -> tuple[Model, Limits]:
    """Loads the model; sizes rows and cache. Raises ModelError, CapacityError or ConfigError."""
    device = device_of(config.device)
    folder = locate(config.model)
    shape = model_shape(folder)
    dtype = dtype_of(config.dtype, device)
    limits = limits_of(config, shape, device, dtype)
    if device.type == "cpu":
        set_threads(shape)
    fp8 = config.quantization == "fp8" and device.type == "cuda"
    return open_model(folder, shape, device, dtype, quantize_fp8=fp8), limits


def set_threads(shape: ModelShape) -> None:
    """Gives the cores to whichever of the two computes: the project's own kernels, or torch's.

    Idle threads of torch spin for milliseconds, on cores that the kernels' threads need.
    """
    torch.set_num_threads(1 if obstacle(shape) is None else usable_cores())


def device_of(name: str) -> torch.device:
    """`auto` is CUDA where there is a GPU. Raises ConfigError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda, and torch finds no GPU here; use device: cpu")
    return torch.device(name)


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU and bfloat16 elsewhere."""
    names = {
        "auto": torch.float32 if device.type == "cpu" else torch.bfloat16,
        "float": torch.float32,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "half": torch.float16,
    }
    if name not in names:
        raise ConfigError(f"dtype: {name!r}; known: {', '.join(names)}")
    return names[name]


def cache_dtype_of(
    name: str, shape: ModelShape, device: torch.device, dtype: torch.dtype
) -> torch.dtype | None:
    """dtype of K and V, None for the model's own: FP8 (e4m3, scales of 1) where `name` says so, on a GPU.

    Raises ConfigError for one that no kernel reads.
    """
    if device.type == "cpu" or name in ("auto", str(dtype).removeprefix("torch.")):
        return None
    if name not in FP8_CACHES:
        raise ConfigError(f"kv_cache_dtype: {name!r}; served on a GPU are auto, {', '.join(FP8_CACHES)}")
    if obstacle(shape) is not None:
        raise ConfigError(
            f"kv_cache_dtype: {name} works with the project's own model definitions; {obstacle(shape)}"
        )
    return torch.float8_e4m3fn


def limits_of(config: ServeConfig, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Limits:
    """Blocks by the memory budget, never more than all rows at full length could use. Raises CapacityError."""
    block_size = config.block_size or 16
    rows = config.max_num_seqs or (64 if device.type == "cpu" else 256)
    length = shape.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > 0:
        length = config.max_model_len
    budget = _budget(config, shape, device, dtype, length)
    blocks = budget.num_blocks
    if config.num_gpu_blocks_override is None:
        if device.type == "cpu" and config.kv_cache_memory_bytes is None:
            blocks = min(blocks, max(CPU_CACHE_BYTES, budget.one_request_bytes) // _block_bytes(budget))
        blocks = min(blocks, rows * -(-length // block_size))
    if config.max_model_len == -1:
        length = min(length, blocks * block_size)
    if blocks < 1 or blocks * block_size < min(length, shape.max_position_embeddings):
        budget.require_fit()
        raise CapacityError(
            f"{blocks} KV blocks of {block_size} tokens hold {blocks * block_size} tokens, fewer than "
            f"max_model_len {length}; lower max_model_len or give the cache more memory"
        )
    cache_bytes = blocks * _block_bytes(budget)
    memory = {**dict(budget.rows()), "KV cache": cache_bytes, "KV blocks": blocks, "rule": budget.rule}
    return Limits(
        num_blocks=blocks,
        block_size=block_size,
        max_num_seqs=rows,
        max_model_len=length,
        seed=config.seed or 0,
        cache_dtype=cache_dtype_of(config.kv_cache_dtype, shape, device, dtype),
        memory=memory,
    )


def _block_bytes(budget: MemoryBudget) -> int:
    return budget.bytes_per_token * budget.block_size


def _budget(
    config: ServeConfig, shape: ModelShape, device: torch.device, dtype: torch.dtype, length: int
) -> MemoryBudget:
    hardware = find_hardware(device.type)
    if hardware is None:
        raise ConfigError(f"device: {device.type} is not on this machine")
    name = str(dtype).removeprefix("torch.")
    settings = MemorySettings(
        max_num_batched_tokens=config.max_num_batched_tokens or 512,
        max_num_seqs=config.max_num_seqs or 64,
        max_model_len=1 if config.max_model_len == -1 else length,
        block_size=config.block_size or 16,
        gpu_memory_utilization=config.gpu_memory_utilization,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        num_blocks=config.num_gpu_blocks_override,
        kv_cache_dtype="auto" if device.type == "cpu" else config.kv_cache_dtype,
        dtype=name,
        quantization="none" if device.type == "cpu" else config.quantization,  # a CPU holds FP8 as `dtype`
    )
    free = DeviceMemory(total_bytes=hardware.memory_bytes, free_bytes=hardware.free_bytes, name=hardware.name)
    return memory_budget(shape, free, settings, CAMSHAFT_CPU if device.type == "cpu" else CAMSHAFT_CUDA)

"""From a resolved configuration to where a device's memory goes: the engine's own start, and every prediction."""

from __future__ import annotations

from typing import Literal, TypeVar

from ..arithmetic.graph_sizes import capture_sizes
from ..arithmetic.memory import (
    DeviceMemory,
    MemoryBudget,
    MemoryRule,
    MemorySettings,
    memory_budget,
    row_state_bytes,
)
from ..arithmetic.memory_rules import CAMSHAFT_CPU, CAMSHAFT_CUDA
from ..arithmetic.served import served_shape
from ..arithmetic.shape import ModelShape
from ..errors import ConfigError
from .hardware import Hardware
from .resolve import Resolved
from .schema import ServeConfig

T = TypeVar("T")
Kind = Literal["cpu", "cuda"]


def rule_of(kind: Kind) -> MemoryRule:
    """How this engine counts on a kind of device."""
    return CAMSHAFT_CPU if kind == "cpu" else CAMSHAFT_CUDA


def graph_sizes(config: ServeConfig, kind: Kind) -> tuple[int, ...]:
    """Decode batches that are captured as graphs under a resolved configuration. Raises ConfigError."""
    return capture_sizes(
        required(config.max_num_seqs, "max_num_seqs"),
        eager=config.enforce_eager or kind == "cpu",
        sizes=config.cudagraph_capture_sizes,
        limit=config.max_cudagraph_capture_size,
    )


def memory_settings(config: ServeConfig, shape: ModelShape, kind: Kind) -> MemorySettings:
    """The settings that decide memory, from a resolved configuration. Raises ConfigError where one is open.

    With max_model_len -1 only one token must fit, and the model's positions are the most that is wanted.
    """
    rows, block = required(config.max_num_seqs, "max_num_seqs"), required(config.block_size, "block_size")
    length = required(config.max_model_len, "max_model_len")
    longest = length if length > 0 else min(shape.max_position_embeddings, shape.longest_context)
    on_cpu = kind == "cpu"
    return MemorySettings(
        max_num_batched_tokens=required(config.max_num_batched_tokens, "max_num_batched_tokens"),
        max_num_seqs=rows,
        max_model_len=longest,
        fit_length=length == -1,
        block_size=block,
        gpu_memory_utilization=config.gpu_memory_utilization,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        num_blocks=config.num_gpu_blocks_override,
        kv_cache_dtype="auto" if on_cpu else config.kv_cache_dtype,
        dtype=config.dtype,
        quantization="none" if on_cpu else config.quantization,  # a CPU holds every format as `dtype`
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        num_graph_sizes=len(graph_sizes(config, kind)),
        other_bytes=0 if on_cpu else row_state_bytes(rows, longest, block),
    )


def required(value: T | None, name: str) -> T:
    """The value of a knob that resolving fills. Raises ConfigError where it is open."""
    if value is None:
        raise ConfigError(f"{name} is not known, and the engine depends on it: give it a value")
    return value


def memory_of(resolved: Resolved, hardware: Hardware, shape: ModelShape) -> MemoryBudget:
    """Where this engine puts the memory of a device under a configuration. Raises ModelError for unknown types."""
    shape = served_shape(shape, on_cpu=hardware.kind == "cpu")
    device = DeviceMemory(total_bytes=hardware.memory_bytes, free_bytes=hardware.free_bytes)
    settings = memory_settings(resolved.config, shape, hardware.kind)
    return memory_budget(shape, device, settings, rule_of(hardware.kind))

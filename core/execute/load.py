"""From a resolved configuration to a model on its device, and how much cache fits beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...kernels.threads import usable_cores
from ..arithmetic.memory import DeviceMemory, Measured, memory_budget
from ..arithmetic.shape import ModelShape
from ..config.budget import Kind, graph_sizes, memory_settings, rule_of
from ..config.hardware import Hardware, find_cpu, find_gpu
from ..errors import CapacityError, ConfigError
from ..model.base import Model
from ..model.fp8 import FP8_CAPABILITY
from ..model.loading.hub import locate
from ..model.registry import obstacle
from ..model.select import model_shape, open_model
from .accelerator import CatchOutOfMemory, accelerator_of
from .limits import Limits, Loaded

if TYPE_CHECKING:
    from ..config import ServeConfig

FP8_CACHES = ("fp8", "fp8_e4m3")


def load_model(config: ServeConfig) -> Loaded:
    """Loads the model; sizes rows and cache by prediction. Raises ModelError, CapacityError or ConfigError."""
    device = device_of(config.device)
    hardware = hardware_of(device)
    require_fp8(config, hardware)
    folder = locate(config.model)
    shape = model_shape(folder)
    dtype = dtype_of(config.dtype, device)
    free = DeviceMemory(total_bytes=hardware.memory_bytes, free_bytes=hardware.free_bytes)
    limits = limits_of(config, shape, device, dtype, free)
    if device.type == "cpu":
        set_threads(shape)
    fp8 = config.quantization == "fp8" and device.type == "cuda"
    model = weights_that_fit(lambda: open_model(folder, shape, device, dtype, quantize_fp8=fp8))
    accelerator = accelerator_of(device)
    if accelerator is None:
        return Loaded(model, limits)
    accelerator.release_cached()

    def fit(measured: Measured) -> Limits:
        return limits_of(config, shape, device, dtype, free, measured)

    others = 0 if hardware.free_bytes is None else hardware.memory_bytes - hardware.free_bytes
    return Loaded(model, limits, fit, accelerator.allocated_bytes(), others)


def weights_that_fit(load: Callable[[], Model]) -> Model:
    """The model that `load` puts on its device. Raises CapacityError if there is no room."""
    with CatchOutOfMemory() as caught:
        return load()
    raise CapacityError(
        f"the weights do not fit: {caught.reason}. End what else uses the device, or use smaller weights."
    )


def require_fp8(config: ServeConfig, hardware: Hardware) -> None:
    """Raises ConfigError where the configuration asks a GPU for FP8 that has no arithmetic for it."""
    capability = hardware.compute_capability
    if hardware.kind != "cuda" or capability is None or capability >= FP8_CAPABILITY:
        return
    for knob, value in (("quantization", config.quantization), ("kv_cache_dtype", config.kv_cache_dtype)):
        if value in FP8_CACHES:
            have, need = (".".join(map(str, part)) for part in (capability, FP8_CAPABILITY))
            raise ConfigError(
                f"{knob}: {value} needs a GPU of compute capability {need} (L4, L40S, H100) or later; "
                f"{hardware.name} has {have}. Leave {knob} out."
            )


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


def hardware_of(device: torch.device) -> Hardware:
    """The device that torch computes on.

    Its memory is as the driver's library has it, which asks for no CUDA context: what one takes is not yet in use.
    """
    if device.type == "cpu":
        return find_cpu()
    properties = torch.cuda.get_device_properties(device)
    found = find_gpu(str(properties.uuid))
    if found is not None:
        return found
    # A part of a GPU, or a machine without the library.
    free, total = torch.cuda.mem_get_info(device)
    return Hardware(
        kind="cuda",
        name=properties.name,
        memory_bytes=total,
        free_bytes=free,
        count=torch.cuda.device_count(),
        compute_capability=(properties.major, properties.minor),
    )


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


def cache_dtype_of(name: str, device: torch.device, dtype: torch.dtype) -> torch.dtype | None:
    """dtype of K and V, None for the model's own: FP8 (e4m3) where `name` says so, on a GPU.

    Its scales are the checkpoint's in the project's own definitions, else 1.

    Raises ConfigError for one that no kernel reads.
    """
    if device.type == "cpu" or name in ("auto", str(dtype).removeprefix("torch.")):
        return None
    if name not in FP8_CACHES:
        raise ConfigError(f"kv_cache_dtype: {name!r}; served on a GPU are auto, {', '.join(FP8_CACHES)}")
    return torch.float8_e4m3fn


def limits_of(
    config: ServeConfig,
    shape: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    memory: DeviceMemory,
    measured: Measured | None = None,
) -> Limits:
    """Rows and blocks by the memory budget, from a resolved configuration. Raises CapacityError."""
    kind: Kind = "cpu" if device.type == "cpu" else "cuda"
    settings = memory_settings(config, shape, kind)
    if measured is not None:
        settings = replace(settings, other_bytes=0)  # among what was measured
    budget = memory_budget(shape, memory, settings, rule_of(kind), measured)
    budget.require_fit()
    cache_bytes = budget.num_blocks * budget.bytes_per_token * budget.block_size
    told = {
        **dict(budget.rows()),
        "KV cache": cache_bytes,
        "KV blocks": budget.num_blocks,
        "rule": budget.rule,
    }
    return Limits(
        num_blocks=budget.num_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=budget.max_model_len,
        seed=config.seed or 0,
        cache_dtype=cache_dtype_of(config.kv_cache_dtype, device, dtype),
        max_num_batched_tokens=settings.max_num_batched_tokens,
        capture_sizes=graph_sizes(config, kind),
        memory=told,
    )

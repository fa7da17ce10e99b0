"""The start-up memory of a release, as facts for its rules: what is left for the KV cache, and what one request needs.

The arithmetic is `core.arithmetic.memory`'s, with vLLM's way of counting at the release: requested = total x utilisation; the
KV cache gets what weights, the profiling peak and (from 0.20.0, by default) captured graphs leave of it; start-up
fails when nothing is left or one request of `max_model_len` does not fit (0.18.0 v1/worker/gpu_worker.py:387-440 and
v1/core/kv_cache_utils.py:623-641, 0.33.0 v1/worker/gpu_worker.py:641-820 and v1/core/kv_cache_planning.py:57-77).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....core.arithmetic import memory
from ....core.arithmetic.graph_sizes import vllm_capture_sizes
from ....core.arithmetic.memory import GIB
from ....core.arithmetic.memory_rules import vllm_rule
from ....core.arithmetic.shape import shape_from_config
from ....core.errors import CamshaftError
from ..facts.sheets import ARITHMETIC
from ..facts.unknown import Unknown, unknown

_PEAK_ERROR = 0.5  # the share of the profiling peak by which the estimate of a start-up may be wrong besides
_FEW = ("max_model_len", "gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size")
_SETTINGS = (*_FEW, "max_num_batched_tokens", "max_num_seqs")
# What spreads or moves weights in ways that the arithmetic does not follow.
_BEYOND = ("cpu_offload_gb", "offload_group_size")
_OPTIONAL = (
    "kv_cache_dtype",
    "data_parallel_size",
    "enable_expert_parallel",
    "kv_cache_memory_bytes",
    "quantization",
    "dtype",
    "enforce_eager",
    "block_size",
    "cudagraph_capture_sizes",
    "max_cudagraph_capture_size",
)


def startup_memory(
    version: str, scope: Callable[[str], Any], model: Mapping[str, Any]
) -> dict[str, Any] | Unknown:
    """GiB on the fullest GPU: `kv_gib` left for the cache, `request_gib` for one request of full length,
    `weights_gib`, `usable_gib`, and `error_gib` by which they may be wrong; or what is missing to tell.

    `model` is a config.json's mapping (or holds a sheet's), or names `weights_gib` (all of them) with `kv_bytes_per_token` and
    `activation_gib` if known.
    """
    told = "weights_gib" in model
    beyond = [name for name in _BEYOND if scope(f"given.{name}")]
    if beyond and not told:
        return unknown("model.weights_gib")
    config = model.get(ARITHMETIC, model)
    if not told and not ("num_hidden_layers" in config and "hidden_size" in config):
        return unknown("model.hidden_size", "model.num_hidden_layers")
    names = _FEW if told else _SETTINGS
    values = {name: scope(name) for name in (*names, "device.memory_gib")}
    length = values["max_model_len"]
    if isinstance(length, Unknown):
        values["max_model_len"] = 1  # what one request needs stays unknown; what weights leave does not
    missing = frozenset().union(*(v.missing for v in values.values() if isinstance(v, Unknown)))
    if missing:
        return Unknown(missing)
    if not all(isinstance(value, (int, float)) for value in values.values()):
        return unknown("max_model_len")
    if min(values["tensor_parallel_size"], values["pipeline_parallel_size"]) < 1:
        return unknown("tensor_parallel_size")
    options = {name: scope(name) for name in _OPTIONAL}
    try:
        found = _from_facts(values, model) if told else _from_config(version, values, options, config)
    except CamshaftError:
        return unknown("model.shape")
    return {**found, "request_gib": length} if isinstance(length, Unknown) else found


def _from_facts(values: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    ranks = values["tensor_parallel_size"] * values["pipeline_parallel_size"]
    usable = values["device.memory_gib"] * values["gpu_memory_utilization"]
    weights = model["weights_gib"] / ranks
    per_token = model.get("kv_bytes_per_token")
    request = None if per_token is None else values["max_model_len"] * per_token / ranks / GIB
    return {
        "usable_gib": usable,
        "error_gib": memory.ESTIMATE_ERROR * usable,
        "weights_gib": weights,
        "kv_gib": usable - weights - model.get("activation_gib", 0.0),
        "request_gib": request if request is not None else unknown("model.kv_bytes_per_token"),
    }


def _from_config(
    version: str, values: Mapping[str, Any], options: Mapping[str, Any], model: Mapping[str, Any]
) -> dict[str, Any]:
    shape = shape_from_config(model)
    eager = options["enforce_eager"] is True
    sizes = options["cudagraph_capture_sizes"]
    captured = vllm_capture_sizes(
        version,
        values["max_num_seqs"],
        values["max_num_batched_tokens"],
        sizes=sizes if isinstance(sizes, (list, tuple)) else None,
        limit=_number(options["max_cudagraph_capture_size"]),
    )
    settings = memory.MemorySettings(
        **{name: values[name] for name in _SETTINGS},
        kv_cache_dtype=_text(options["kv_cache_dtype"]) or "auto",
        kv_cache_memory_bytes=_number(options["kv_cache_memory_bytes"]),
        data_parallel_size=_number(options["data_parallel_size"]) or 1,
        enable_expert_parallel=options["enable_expert_parallel"] is True,
        quantization=_text(options["quantization"]),
        dtype=_text(options["dtype"]),
        block_size=_number(options["block_size"]) or 16,
        num_graph_sizes=0 if eager else len(captured),
    )
    device = memory.DeviceMemory(total_bytes=int(values["device.memory_gib"] * GIB))
    budget = memory.memory_budget(shape, device, settings, vllm_rule(version))
    return {
        "usable_gib": budget.usable_bytes / GIB,
        "error_gib": (memory.ESTIMATE_ERROR * budget.usable_bytes + _PEAK_ERROR * budget.activation_bytes)
        / GIB,
        "weights_gib": budget.weights_bytes / GIB,
        "kv_gib": budget.kv_bytes / GIB,
        "request_gib": budget.one_request_bytes / GIB,
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value != "auto" else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

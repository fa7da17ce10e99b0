"""Lines that a server prints once: what fits its cache, which settings are in force, why it did not start."""

from __future__ import annotations

import re

from .model import Event, Setting

_N = r"([\d,]+(?:\.\d+)?)"


def startup_settings(message: str, where: str) -> list[Setting]:
    """Settings and capacities that one message states."""
    found = []
    for name, pattern, kind in _SETTINGS:
        match = re.search(pattern, message)
        if match:
            found.append(Setting(name=name, value=kind(match[1].replace(",", "")), source=where))
    if "Asynchronous scheduling is" in message:
        found.append(Setting(name="async_scheduling", value="enabled" in message, source=where))
    if re.search(r"enforce_eager=True|Cuda graph is disabled|CUDA graphs? (?:is|are) disabled", message):
        found.append(Setting(name="enforce_eager", value=True, source=where))
    return found


_SETTINGS = (
    ("kv_tokens", rf"KV cache size: {_N} tokens", lambda t: int(float(t))),
    ("max_concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: {_N}x", float),
    ("max_model_len", rf"Maximum concurrency for {_N} tokens per request", lambda t: int(float(t))),
    ("num_gpu_blocks", rf"# (?:GPU|cuda) blocks: {_N}", lambda t: int(float(t))),
    ("num_gpu_blocks", rf"num_gpu_blocks is: {_N}", lambda t: int(float(t))),
    ("kv_gib", rf"Available KV cache memory: {_N} GiB", float),
    ("weights_gib", rf"[Mm]odel (?:weights|loading) took {_N} ?Gi?B", float),
    ("activation_gib", rf"(?:PyTorch activation peak memory takes|activation peak memory:?) {_N} ?GiB", float),
    ("graph_gib", rf"Graph capturing finished in \d+ secs, took {_N} GiB", float),
    ("graph_gib", rf"Estimated CUDA graph memory: {_N} GiB", float),
    ("max_num_batched_tokens", rf"Chunked prefill is enabled with max_num_batched_tokens={_N}", lambda t: int(float(t))),
)  # fmt: skip


def startup_events(message: str, where: str) -> list[Event]:
    """Failures and warnings that one message reports, with their numbers."""
    events = []
    for code, pattern, names in _EVENTS:
        match = re.search(pattern, message)
        if match:
            numbers = {
                name: float(value.replace(",", ""))
                for name, value in zip(names, match.groups(), strict=False)
                if value
            }
            events.append(Event(code=code, message=message, source=where, numbers=numbers))
    return events


_EVENTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "kv_does_not_fit",
        rf"max seq len \({_N}\), \({_N} GiB KV cache is needed, which is larger than the available KV cache memory "
        rf"\({_N} GiB\)(?:.*estimated maximum model length is {_N})?",
        ("max_model_len", "needed_gib", "available_gib", "estimated_max_model_len"),
    ),
    (
        "kv_does_not_fit",
        rf"max seq len \({_N}\) is larger than the maximum number of tokens that can be stored in KV cache \({_N}\)",
        ("max_model_len", "kv_tokens"),
    ),
    ("no_kv_memory", r"No available memory for the cache blocks", ()),
    (
        "preempted",
        r"is preempted by PreemptionMode\.(?:RECOMPUTE|SWAP) mode.*total(?:_num)?_cumulative_preemption(?:_cnt)?=(\d+)",
        ("total",),
    ),
    ("out_of_memory", r"CUDA out of memory|OutOfMemoryError", ()),
    ("unrecognised_arguments", r"error: unrecognized arguments: (?:.*)", ()),
    ("invalid_configuration", r"\d+ validation errors? for \w+Config", ()),
    ("engine_dead", r"EngineDeadError|EngineCore encountered an issue|Engine process failed", ()),
    (
        "free_memory_low",
        rf"Free memory on device .*\({_N}/{_N} GiB\) on startup is less than desired GPU memory utilization"
        rf"(?: \({_N}, {_N} GiB\))?",
        ("free_gib", "total_gib", "utilization", "wanted_gib"),
    ),
)

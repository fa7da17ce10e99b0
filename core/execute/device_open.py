"""Opening on a device: memory is measured by the largest step, graphs are tried, and the cache takes the rest."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from ..arithmetic.memory import Measured
from ..errors import CapacityError
from ..model.batch import PagedCache
from ..model.registry import obstacle
from ..sample.on_device import DeviceSampler
from .accelerator import Accelerator, CatchOutOfMemory
from .cache import allocate_cache
from .device_steps import DeviceSteps
from .graphs import DecodeGraphs
from .limits import Limits, Loaded
from .profile import Largest, estimate_graphs, profile, tell
from .prompt_scores import PromptScores
from .rehearsal import rehearse
from .rows import RowState

log = logging.getLogger("camshaft.graphs")


@dataclass(frozen=True, slots=True)
class Opened:
    """What steps need on the device."""

    steps: DeviceSteps
    cache: PagedCache
    limits: Limits  # as measured


def open_on_device(
    loaded: Loaded, rows: RowState, sampler: DeviceSampler, scores: PromptScores, accelerator: Accelerator
) -> Opened:
    """Sizes the cache, allocates it, runs every kind of step and captures decodes. Raises CapacityError."""
    model, limits = loaded.model, loaded.limits
    sizes = _sizes_to_capture(loaded, rows, sampler, accelerator)
    if loaded.fit is not None:
        limits = _measured_limits(loaded, sizes, rows, sampler, accelerator)
    with CatchOutOfMemory() as caught:
        cache = allocate_cache(model, limits)
        steps = DeviceSteps(model, cache, rows, sampler, scores, accelerator, limits.max_num_batched_tokens)
        steps.no_graphs = "model" if loaded.limits.capture_sizes else "off"
        rehearse(steps, limits)
        if sizes:
            graphs = DecodeGraphs(model, cache, rows, sampler, accelerator, sizes)
            captured = _capture(graphs, accelerator)
            limits = replace(limits, memory={**limits.memory, "graphs as captured": captured})
            steps.graphs = graphs
        return Opened(steps, cache, limits)
    raise CapacityError(
        f"the device has no room for {limits.num_blocks} KV blocks, a step and {len(sizes)} graphs: {caught.reason}. "
        "Lower gpu_memory_utilization, or end what else uses the device."
    )


def _capture(graphs: DecodeGraphs, accelerator: Accelerator) -> int:
    """Bytes that the graphs take of the device, with their buffers."""
    graphs.warm()
    accelerator.release_cached()
    before = accelerator.used_bytes() - graphs.buffer_bytes
    graphs.capture()
    return accelerator.used_bytes() - before


def _sizes_to_capture(
    loaded: Loaded, rows: RowState, sampler: DeviceSampler, accelerator: Accelerator
) -> tuple[int, ...]:
    """The project's own definitions wait for nothing, and a graph can hold them; what transformers defines is tried.

    Raises CapacityError.
    """
    model, sizes = loaded.model, loaded.limits.capture_sizes
    if obstacle(model.shape) is None or not sizes:
        return sizes
    tried = tuple({min(sizes), max(sizes)})  # definitions may treat a single sequence apart
    reason = None
    with CatchOutOfMemory() as caught:
        trial = allocate_cache(model, replace(loaded.limits, num_blocks=1))
        reason = DecodeGraphs(model, trial, rows, sampler, accelerator, tried).why_none()
    if caught.reason is not None:
        raise CapacityError(
            f"a decode step of {max(sizes)} sequences does not fit beside the weights: {caught.reason}. "
            "Lower max_num_seqs."
        )
    if reason is None:
        return sizes
    log.warning("decode steps of %s run without captured graphs: %s", model.shape.architecture, reason)
    return ()


def _measured_limits(
    loaded: Loaded,
    sizes: tuple[int, ...],
    rows: RowState,
    sampler: DeviceSampler,
    accelerator: Accelerator,
) -> Limits:
    """Limits by a trial of the largest step and of the largest graphs. Raises CapacityError."""
    model, predicted = loaded.model, loaded.limits
    trial = allocate_cache(model, replace(predicted, num_blocks=1))
    for layer in (*trial.k, *trial.v):
        layer.view(torch.uint8).zero_()
    with CatchOutOfMemory() as caught:
        measured = _measure(loaded, trial, sizes, rows, sampler, accelerator)
        del trial
        accelerator.release_cached()
        assert loaded.fit is not None
        limits = loaded.fit(measured)
        tell(predicted.memory, limits.memory)
        before = {k: v for k, v in predicted.memory.items() if k != "rule"}
        return replace(
            limits,
            max_model_len=min(limits.max_model_len, predicted.max_model_len),
            memory={**limits.memory, "predicted": before},
        )
    raise CapacityError(
        f"one step of {predicted.max_num_batched_tokens} tokens and {predicted.max_num_seqs} sequences does not "
        f"fit beside the weights: {caught.reason}. Lower max_num_batched_tokens or max_num_seqs."
    )


def _measure(
    loaded: Loaded,
    trial: PagedCache,
    sizes: tuple[int, ...],
    rows: RowState,
    sampler: DeviceSampler,
    accelerator: Accelerator,
) -> Measured:
    model, limits = loaded.model, loaded.limits
    largest = Largest(limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_model_len)
    measured = profile(
        model, trial, rows, sampler, accelerator, largest, loaded.weights_bytes, loaded.others_bytes
    )
    if not sizes:
        return replace(measured, graphs=0)
    graphs = DecodeGraphs(model, trial, rows, sampler, accelerator, sizes[-2:])
    return replace(measured, graphs=estimate_graphs(graphs, accelerator, len(sizes)))

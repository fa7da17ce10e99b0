"""Where a device's memory goes, and what fits: one function for the engine's own start and for every prediction.

    usable  = min(total x utilisation, free)
    KV      = usable - weights - activation peak - context - graphs
    blocks  = KV // bytes of a block in all layers

The activation peak is the larger of the forward pass at `max_num_batched_tokens` and the sampler at
`max_num_seqs` x vocabulary. Whatever an engine has measured (a profile run) replaces the estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from ..errors import CapacityError
from .products import expert_split
from .quantization import Quantization, dtype_bytes, stored_quantization
from .shape import ModelShape
from .sizes import (
    WeightBytes,
    kv_bytes_per_token,
    kv_bytes_per_token_per_layer,
    resolve_kv_dtype,
    weight_bytes,
)

GIB = 2**30
ESTIMATE_ERROR = 0.03  # of the usable memory: by so much the budget of a start may be off


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """How one engine counts. Figures are estimates that measurement replaces."""

    name: str
    sampler_copies: float  # float32 [max_num_seqs, vocab] buffers alive at once
    context_bytes: int  # allocations outside the allocator that count against the budget
    communication_bytes: int  # the same, with more than one device
    graphs_counted: bool  # captured graphs are subtracted before the cache is sized
    graph_bytes: int  # of one layer in one captured size
    window_aware: bool  # sliding-window layers keep blocks for their window only
    useful_only: bool = False  # never more blocks than max_num_seqs full sequences need
    cache_limit_bytes: int | None = None  # of a cache whose size is not given, unless one request needs more
    default_utilization: float = 0.92
    packed_row_multiple: int = 1  # to which rows of experts in MXFP4 are padded


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device. `free_bytes` None means nothing else uses it."""

    total_bytes: int
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The settings that decide where memory goes, as resolved values."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    fit_length: bool = False  # max_model_len is the most that is wanted; what the cache holds is taken
    block_size: int = 16
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str | None = None
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1  # copies that share one set of experts; 1 where each has its own
    enable_expert_parallel: bool = False
    num_graph_sizes: int = 0  # batch sizes captured as graphs; 0 is eager
    other_bytes: int = 0  # anything else on the device: a draft model, an encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a profile run found on the device, in bytes; None keeps the estimate."""

    weights: int | None = None
    activations: int | None = None
    graphs: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Where the bytes of one device go. `kv_bytes` may be negative: then nothing starts."""

    rule: str
    total_bytes: int
    free_bytes: int  # all of it where nothing else uses the device
    usable_bytes: int
    weights_bytes: int
    forward_bytes: int
    sampler_bytes: int
    activation_bytes: int  # the larger of the two, or what was measured
    graph_bytes: int  # 0 when the rule does not count them
    context_bytes: int
    other_bytes: int
    unclaimed_bytes: int  # left over beyond what the rule's cache takes
    kv_bytes: int
    kv_dtype: str
    bytes_per_token: int  # of the cache, all layers of this device
    block_size: int
    num_blocks: int
    max_model_len: int  # as given, or as it fits
    one_request_bytes: int  # cache of one request of max_model_len
    utilization: float
    kv_given: str | None = None  # the knob that set the cache's size; None: it takes what is left
    measured: tuple[str, ...] = ()
    weights: dict[str, int] = field(default_factory=dict)  # by component

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def missing_bytes(self) -> int:
        """Bytes short of holding one request of max_model_len; 0 when it fits."""
        return max(0, self.one_request_bytes - self.kv_bytes)

    @property
    def excess_bytes(self) -> int:
        """Bytes that a cache of a given size asks for beyond what is free; 0 for one that takes what is left."""
        return max(0, self._wanted_bytes - self.free_bytes) if self.kv_given else 0

    @property
    def _wanted_bytes(self) -> int:
        parts = self.weights_bytes + self.activation_bytes + self.graph_bytes + self.context_bytes
        return parts + self.other_bytes + self.kv_bytes

    @property
    def fits(self) -> bool:
        return self.num_blocks > 0 and self.missing_bytes == 0 and self.excess_bytes == 0

    @property
    def max_concurrency(self) -> float:
        """Requests of max_model_len that the cache holds at once."""
        return max(0, self.kv_bytes) / self.one_request_bytes

    def sequences(self, tokens_each: float) -> int:
        """Sequences of `tokens_each` tokens that the cache holds, in whole blocks."""
        blocks = max(1, -(-int(tokens_each) // self.block_size))
        return self.num_blocks // blocks

    def utilization_needed(self) -> float:
        """The utilisation, rounded up, at which one request fits; above 1 it never does."""
        return math.ceil((self.utilization + self.missing_bytes / self.total_bytes) * 100 - 1e-9) / 100

    def rows(self) -> list[tuple[str, int]]:
        """The table of a report: label and bytes, in the order of the subtraction."""
        unclaimed = [("left free", -self.unclaimed_bytes)] if self.unclaimed_bytes else []
        return [
            ("device", self.total_bytes),
            (f"usable at {self.utilization:g}", self.usable_bytes),
            ("weights", -self.weights_bytes),
            ("activation peak", -self.activation_bytes),
            ("context", -self.context_bytes),
            ("graphs", -self.graph_bytes),
            ("other", -self.other_bytes),
            *unclaimed,
            ("KV cache", self.kv_bytes),
        ]

    def arithmetic(self) -> str:
        """One line: the subtraction in GiB, with its result."""
        return (
            f"{self.total_bytes / GIB:.2f} GiB x {self.utilization:g} = {self.usable_bytes / GIB:.2f}; "
            f"less {self._terms()} leaves {self.kv_bytes / GIB:.2f} GiB for the KV cache"
        )

    def _terms(self) -> str:
        """What is subtracted, in GiB."""
        rows = self.rows()[2:-1]
        return ", ".join(f"{label} {abs(size) / GIB:.2f}" for label, size in rows if -size >= GIB / 200)

    def require_fit(self, place: str = "") -> None:
        """Raises CapacityError with the arithmetic, what is missing and what would make it fit.

        place: where the knob that gives the cache's size was written.
        """
        if self.fits:
            return
        if self.kv_given:
            self._refuse_given(f"{self.kv_given} ({place})" if place else self.kv_given)
        raise CapacityError(
            f"It does not fit: {self.arithmetic()}, and one request of max_model_len {self.max_model_len} needs "
            f"{self.one_request_bytes / GIB:.2f} GiB: {self.missing_bytes / GIB:.2f} GiB are missing "
            f"({self.missing_bytes / self.total_bytes:.1%} of the device). {self._remedies()}"
        )

    def _remedies(self) -> str:
        """What would make it fit, in a sentence."""
        ways = ["use smaller weights or more devices"]
        if self.weights_bytes < self.usable_bytes:
            sampler = self.sampler_bytes >= self.forward_bytes
            knob = "max_num_seqs (the sampler sets the peak)" if sampler else "max_num_batched_tokens"
            narrow = [] if self.kv_dtype.startswith("fp8") else ["set kv_cache_dtype: fp8"]
            ways = [f"lower max_model_len or {knob}", *narrow, *ways]
        wanted = self.utilization_needed()
        if wanted <= 0.98:
            ways.insert(0, f"raise gpu_memory_utilization to {wanted:.2f}")
        told = ", or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))
        return told[0].upper() + told[1:] + "."

    def _refuse_given(self, knob: str) -> NoReturn:
        """The refusal of a cache whose size was set."""
        cache = f"a KV cache of {self.kv_bytes / GIB:.2f} GiB"
        if self.excess_bytes:
            raise CapacityError(
                f"It does not fit: {self._terms()} and {cache} are {self._wanted_bytes / GIB:.2f} GiB, and "
                f"{self.free_bytes / GIB:.2f} GiB are free: {self.excess_bytes / GIB:.2f} GiB are missing. "
                f"Lower {knob}, or use smaller weights or more devices."
            )
        raise CapacityError(
            f"It does not fit: {cache} holds {self.kv_tokens:,} tokens and one request of max_model_len "
            f"{self.max_model_len:,} needs {self.one_request_bytes / GIB:.2f} GiB: {self.missing_bytes / GIB:.2f} GiB "
            f"are missing. Raise {knob}, or lower max_model_len."
        )


def memory_budget(
    shape: ModelShape,
    device: DeviceMemory,
    settings: MemorySettings,
    rule: MemoryRule,
    measured: Measured | None = None,
) -> MemoryBudget:
    """The budget of the fullest device. Nothing is refused here: see `MemoryBudget.require_fit`.

    With `kv_cache_memory_bytes` the cache has exactly that size, and with `num_blocks` exactly that
    many blocks, as in vLLM; a rule that takes what is useful alone takes no more of them than that.
    Raises ModelError for an unknown dtype or quantisation.
    """
    given = measured or Measured()
    tp, pp = settings.tensor_parallel_size, settings.pipeline_parallel_size
    parts = _weights(shape, settings, rule)
    forward = forward_peak_bytes(shape, settings)
    sampler = sampler_peak_bytes(shape, settings, rule)
    activations = _first(given.activations, max(forward, sampler))
    graphs = _first(given.graphs, graph_estimate_bytes(shape, settings, rule)) if rule.graphs_counted else 0
    context = _first(
        given.context,
        rule.context_bytes + (rule.communication_bytes if tp * pp * settings.data_parallel_size > 1 else 0),
    )
    weights = _first(given.weights, parts.total)
    usable = int(device.total_bytes * settings.gpu_memory_utilization)
    if device.free_bytes is not None:
        usable = min(usable, device.free_bytes)
    left = usable - weights - activations - graphs - context - settings.other_bytes
    kv_dtype = resolve_kv_dtype(shape, settings.kv_cache_dtype, _explicit(settings.dtype))
    per_token = kv_bytes_per_token(shape, kv_dtype, tp, pp)
    needed = request_kv_bytes(shape, settings, rule, 1 if settings.fit_length else settings.max_model_len)
    cache = _cache(left, max(1, per_token * settings.block_size), needed, settings, rule)
    length = settings.max_model_len
    if settings.fit_length:
        length = max(1, min(length, cache.num_blocks * settings.block_size))
    return MemoryBudget(
        rule=rule.name,
        total_bytes=device.total_bytes,
        free_bytes=device.total_bytes if device.free_bytes is None else device.free_bytes,
        usable_bytes=usable,
        weights_bytes=weights,
        forward_bytes=forward,
        sampler_bytes=sampler,
        activation_bytes=activations,
        graph_bytes=graphs,
        context_bytes=context,
        other_bytes=settings.other_bytes,
        unclaimed_bytes=0 if cache.given_by else left - cache.size_bytes,
        kv_bytes=cache.size_bytes,
        kv_dtype=kv_dtype,
        bytes_per_token=per_token,
        block_size=settings.block_size,
        num_blocks=cache.num_blocks,
        max_model_len=length,
        one_request_bytes=request_kv_bytes(shape, settings, rule, length),
        utilization=settings.gpu_memory_utilization,
        kv_given=cache.given_by,
        measured=tuple(name for name in Measured.__slots__ if getattr(given, name) is not None),
        weights={name: getattr(parts, name) for name in type(parts).__slots__},
    )


def forward_peak_bytes(shape: ModelShape, settings: MemorySettings) -> int:
    """Largest live activations of a forward pass at `max_num_batched_tokens`, logits excluded.

    Hidden state and residual live throughout; beside them the widest moment of a layer: the MLP's
    doubled product with its activation, or for experts the same per visited expert plus their outputs.
    """
    element = dtype_bytes(_explicit(settings.dtype) or shape.dtype)
    tokens, tp = settings.max_num_batched_tokens, settings.tensor_parallel_size
    widest = 0.0
    if shape.num_layers > shape.num_moe_layers:
        widest = 3 * shape.intermediate_size / tp
    if shape.num_moe_layers:  # the tokens of all copies that share the experts meet here
        split = expert_split(tp, settings.data_parallel_size, settings.enable_expert_parallel)
        wide = shape.moe_intermediate_size / split.parts
        each = shape.experts_per_token * (max(2 * wide, shape.hidden_size) + wide) + shape.hidden_size
        widest = max(widest, split.copies * each)
    qkv = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim / tp
    attention = qkv + shape.num_heads * shape.head_dim / tp
    return round(tokens * (2 * shape.hidden_size + max(widest, attention)) * element)


def sampler_peak_bytes(shape: ModelShape, settings: MemorySettings, rule: MemoryRule) -> int:
    """Peak of sampling the largest batch: float32 logits buffers beside the hidden state and residual."""
    element = dtype_bytes(_explicit(settings.dtype) or shape.dtype)
    logits = rule.sampler_copies * settings.max_num_seqs * shape.vocab_size * 4
    hidden = 2 * settings.max_num_batched_tokens * shape.hidden_size * element
    return round(logits + hidden)


def graph_estimate_bytes(shape: ModelShape, settings: MemorySettings, rule: MemoryRule) -> int:
    """Memory of captured graphs, in proportion to layers and captured sizes."""
    return shape.num_layers * settings.num_graph_sizes * rule.graph_bytes


def request_kv_bytes(shape: ModelShape, settings: MemorySettings, rule: MemoryRule, tokens: int) -> int:
    """Cache bytes of one request of `tokens` tokens on one device, in whole blocks.

    A sliding-window layer of a window-aware engine keeps `window - 1 + max_num_batched_tokens` tokens
    and one block more (vLLM 0.18.0 v1/kv_cache_interface.py:232-300).
    """
    dtype = resolve_kv_dtype(shape, settings.kv_cache_dtype, _explicit(settings.dtype))
    layer = kv_bytes_per_token_per_layer(shape, dtype, settings.tensor_parallel_size) * settings.block_size
    sliding = shape.num_sliding_layers if rule.window_aware and shape.sliding_window else 0
    pages = (shape.num_kv_layers - sliding) * -(-tokens // settings.block_size)
    if sliding:
        kept = min(int(shape.sliding_window or 0) - 1 + settings.max_num_batched_tokens, tokens)
        pages += sliding * (-(-kept // settings.block_size) + 1)
    return round(pages * layer / settings.pipeline_parallel_size)


def row_state_bytes(rows: int, max_model_len: int, block_size: int) -> int:
    """What a device keeps of every row: known tokens (int64) and block table (int32), with a row that is nobody's."""
    return (rows + 1) * ((max_model_len + 1) * 8 + -(-max_model_len // block_size) * 4)


def quantization_for(shape: ModelShape, override: str | None) -> Quantization:
    """The storage scheme in force: the configuration's, else the checkpoint's own. Raises ModelError."""
    return stored_quantization(shape.raw, override)


def _weights(shape: ModelShape, settings: MemorySettings, rule: MemoryRule) -> WeightBytes:
    return weight_bytes(
        shape,
        quantization=quantization_for(shape, settings.quantization),
        dtype=_explicit(settings.dtype),
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        split=expert_split(
            settings.tensor_parallel_size, settings.data_parallel_size, settings.enable_expert_parallel
        ),
        packed_row_multiple=rule.packed_row_multiple,
    )


class _Cache(NamedTuple):
    """The cache that is taken, and the knob that set its size, if one did."""

    size_bytes: int
    num_blocks: int
    given_by: str | None = None


def _cache(left: int, block: int, needed: int, settings: MemorySettings, rule: MemoryRule) -> _Cache:
    """Of `left` bytes, in blocks of `block` bytes; `needed` hold one request."""
    if settings.num_blocks is not None:
        return _Cache(settings.num_blocks * block, settings.num_blocks, "num_gpu_blocks_override")
    size, given_by = left, None
    if settings.kv_cache_memory_bytes is not None:
        size, given_by = settings.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    elif rule.cache_limit_bytes is not None:
        size = min(size, max(rule.cache_limit_bytes, needed))
    if rule.useful_only:
        useful = settings.max_num_seqs * -(-settings.max_model_len // settings.block_size)
        size = min(size, useful * block)
    return _Cache(size, max(0, size // block), given_by)


def _explicit(dtype: str | None) -> str | None:
    return None if dtype in (None, "auto") else dtype


def _first(measured: int | None, estimate: int) -> int:
    return estimate if measured is None else measured

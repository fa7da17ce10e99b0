"""The time of one step from its shapes: products, attention, communication, small kernels, sampling, host.

A step is the lengths of its decodes and of its prompt chunks. Every part is kept apart, so that a
diagnosis can say which one binds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from ...core.arithmetic.memory import quantization_for
from ...core.arithmetic.products import ExpertSplit, Gemm, dense_gemms, expert_gemms, expert_split, head_gemm
from ...core.arithmetic.quantization import UNQUANTIZED, dtype_bytes
from ...core.arithmetic.shape import ModelShape
from ...core.arithmetic.sizes import resolve_kv_dtype
from .attention import AttentionTimer
from .exchange import all_reduce_us
from .gemm import GemmTimer
from .hardware import HardwareSheet


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """The settings that change the time of a step, as resolved values."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1  # copies that share one set of experts, each as loaded as this one
    quantization: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str = "auto"
    enable_expert_parallel: bool = False  # whole experts on each device, instead of a part of every expert
    enforce_eager: bool = False
    max_graph_size: int = 512  # largest batch replayed from a captured graph
    # Of decodes; else graphs hold what lies between, and a step launches both.
    attention_in_graphs: bool = True
    # The next step is planned while this one runs; taking tokens in is not hidden.
    async_scheduling: bool = False
    # Of weights that stay in the host's memory and are read from there in every step.
    offloaded_bytes: int = 0
    sorted_sampling: bool = True  # top-k or top-p by sorting the logits, as vLLM's own sampler does


@dataclass(slots=True)
class StepTime:
    """Milliseconds of one step, by what they go to. `total` is what the step takes."""

    gemm: float = 0.0
    experts: float = 0.0
    head: float = 0.0
    decode_attention: float = 0.0
    prefill_attention: float = 0.0
    communication: float = 0.0
    transfer: float = 0.0  # of weights that lie in the host's memory
    elementwise: float = 0.0
    sampling: float = 0.0
    launch: float = 0.0  # waiting for kernels to be launched, beyond the device's own time
    host: float = 0.0  # not hidden behind the device

    @property
    def total(self) -> float:
        return (
            self.gemm
            + self.experts
            + self.head
            + self.decode_attention
            + self.prefill_attention
            + self.communication
            + self.transfer
            + self.elementwise
            + self.sampling
            + self.launch
            + self.host
        )

    def scaled(self, factor: float) -> StepTime:
        """Every part `factor` times as long."""
        return StepTime(*(getattr(self, part.name) * factor for part in fields(self)))


class StepTimer(Protocol):
    """What times steps: a cost model, one with drafts, one fitted from evidence."""

    def step(
        self,
        decode_contexts: np.ndarray,
        chunk_tokens: np.ndarray,
        chunk_starts: np.ndarray,
        samples: int,
        padding: int = 0,
    ) -> StepTime:
        """The time of one step.

        decode_contexts: [d] tokens each decode attends to; chunk_tokens, chunk_starts: [p] prompt
        tokens computed now and cached before them; samples: rows that draw a token; padding: tokens
        computed in vain.
        """
        ...


@dataclass(frozen=True, slots=True)
class Scaled:
    """A timer all of whose steps take `factor` times as long."""

    timer: StepTimer
    factor: float

    def step(
        self,
        decode_contexts: np.ndarray,
        chunk_tokens: np.ndarray,
        chunk_starts: np.ndarray,
        samples: int,
        padding: int = 0,
    ) -> StepTime:
        """As `StepTimer.step`."""
        told = self.timer.step(decode_contexts, chunk_tokens, chunk_starts, samples, padding)
        return told.scaled(self.factor)


@dataclass(slots=True)
class StepCost:
    """Times steps of one model on one device. Pure arithmetic; parts that depend on tokens alone are cached."""

    shape: ModelShape
    hardware: HardwareSheet
    settings: CostSettings = field(default_factory=CostSettings)
    _by_tokens: dict[int, tuple[float, float, float, float]] = field(default_factory=dict, repr=False)
    _by_samples: dict[int, tuple[float, float]] = field(default_factory=dict, repr=False)
    _linear: GemmTimer = field(init=False, repr=False)
    _experts: GemmTimer = field(init=False, repr=False)
    _head: GemmTimer = field(init=False, repr=False)
    _router: GemmTimer | None = field(init=False, repr=False)  # of a router in float32
    _attention: AttentionTimer = field(init=False, repr=False)
    _split: ExpertSplit = field(init=False)

    def __post_init__(self) -> None:
        shape, settings = self.shape, self.settings
        scheme = quantization_for(shape, settings.quantization)
        dtype = settings.dtype if settings.dtype and settings.dtype != "auto" else shape.dtype
        self._split = expert_split(
            settings.tensor_parallel_size, settings.data_parallel_size, settings.enable_expert_parallel
        )
        plain = GemmTimer(self.hardware, UNQUANTIZED, dtype)
        self._experts = GemmTimer(self.hardware, scheme, dtype)
        self._linear = plain if scheme.experts_only and shape.num_experts else self._experts
        self._head = self._experts if scheme.embeddings else plain
        in_float32 = shape.architecture in FLOAT32_ROUTERS
        self._router = GemmTimer(self.hardware, UNQUANTIZED, "float32") if in_float32 else None
        kv_dtype = resolve_kv_dtype(shape, settings.kv_cache_dtype, settings.dtype)
        self._attention = AttentionTimer(self.hardware, shape, dtype, kv_dtype, settings.tensor_parallel_size)

    @property
    def multiplied(self) -> tuple[str, str]:
        """The type that the weights' scheme asks for and the one that the device multiplies in."""
        return self._experts.wanted, self._experts.compute

    def step(
        self,
        decode_contexts: np.ndarray,
        chunk_tokens: np.ndarray,
        chunk_starts: np.ndarray,
        samples: int,
        padding: int = 0,
    ) -> StepTime:
        """As `StepTimer.step`."""
        decodes, prompts = len(decode_contexts), len(chunk_tokens)
        tokens = decodes + int(chunk_tokens.sum()) + padding if prompts else decodes + padding
        padded = self._padded(tokens)
        gemm, experts, communication, elementwise = self._token_parts(padded)
        head, sampling = self._sample_parts(samples)
        time = StepTime(
            gemm, experts, head, communication=communication, elementwise=elementwise, sampling=sampling
        )
        time.transfer = self.settings.offloaded_bytes / (self.hardware.host_link_gb_s * 1e6)
        if decodes:
            time.decode_attention = self._attention.decode_ms(decode_contexts)
        if prompts:
            time.prefill_attention = self._attention.prefill_ms(chunk_tokens, chunk_starts)
        self._add_host(time, decodes, prompts, tokens)
        return time

    def decode_step(self, sequences: int, context: float) -> StepTime:
        """A step of `sequences` decodes that each attend to `context` tokens."""
        none = np.empty(0, dtype=np.int64)
        return self.step(np.full(sequences, context), none, none, sequences)

    def prefill_step(self, tokens: int, start: int = 0) -> StepTime:
        """A step of one prompt chunk alone."""
        none = np.empty(0, dtype=np.int64)
        return self.step(none, np.array([tokens]), np.array([start]), 1)

    def tokens_ms(self, tokens: int) -> float:
        """What `tokens` rows take in a step but for attention, sampling and the host: products, experts, exchange."""
        return sum(self._token_parts(tokens))

    def samples_ms(self, samples: int) -> float:
        """Logits of so many rows, and drawing from them."""
        return sum(self._sample_parts(samples))

    def attention_ms(
        self, decode_contexts: np.ndarray, chunk_tokens: np.ndarray, chunk_starts: np.ndarray
    ) -> float:
        """Attention of decodes and of chunks, as in `step`."""
        decodes = self._attention.decode_ms(decode_contexts) if len(decode_contexts) else 0.0
        return decodes + (
            self._attention.prefill_ms(chunk_tokens, chunk_starts) if len(chunk_tokens) else 0.0
        )

    @property
    def planning_floor_ms(self) -> float:
        """What every step takes besides its tokens: the host's share that is never hidden, and weights it holds."""
        host = self.hardware.host
        planning = (host.unhidden_us if self.settings.async_scheduling else host.step_us) / 1e3
        return planning + self.settings.offloaded_bytes / (self.hardware.host_link_gb_s * 1e6)

    def _padded(self, tokens: int) -> int:
        """Tokens after rounding up to a captured size: 1, 2, 4, then multiples of 8."""
        if self.settings.enforce_eager or tokens > self.settings.max_graph_size or tokens <= 2:
            return tokens
        return 4 if tokens <= 4 else -(-tokens // 8) * 8

    def _token_parts(self, tokens: int) -> tuple[float, float, float, float]:
        found = self._by_tokens.get(tokens)
        if found is None:
            found = (
                self._gemm_ms(tokens),
                self._expert_ms(tokens),
                self._communication_ms(tokens),
                self._elementwise_ms(tokens),
            )
            self._by_tokens[tokens] = found
        return found

    def _gemm_ms(self, tokens: int) -> float:
        gemms = dense_gemms(self.shape, self.settings.tensor_parallel_size)
        return sum(g.count * self._dense_us(g, tokens) for g in gemms) / 1e3

    def _dense_us(self, gemm: Gemm, tokens: int) -> float:
        if gemm.name == "router" and self._router:
            return max(self._router.time_us(gemm, tokens), FLOAT32_FLOOR_US)
        return self._linear.time_us(gemm, tokens)

    def _expert_ms(self, tokens: int) -> float:
        """The experts' products over the tokens of all copies that share them."""
        shape, split = self.shape, self._split
        met = float(tokens * split.copies)
        devices = min(split.devices, max(1, shape.num_experts)) if split.whole else 1
        return (
            sum(
                g.count
                * self._experts.grouped_time_us(g, met, shape.num_experts, shape.experts_per_token, devices)
                for g in expert_gemms(shape, split.parts)
            )
            / 1e3
        )

    def _communication_ms(self, tokens: int) -> float:
        """Two all-reduces a layer of the hidden state, and one after the embedding.

        Copies that share experts gather all their tokens before an expert layer and scatter the sums after it
        (vLLM's allgather_reducescatter): together an all-reduce of that message over all the devices.
        """
        size, split = self.settings.tensor_parallel_size, self._split
        moe = self.shape.num_moe_layers if split.copies > 1 else 0
        message = tokens * self.shape.hidden_size * dtype_bytes(self.shape.dtype)
        took_us = 0.0
        if size > 1:
            took_us += (2 * self.shape.num_layers - moe + 1) * all_reduce_us(self.hardware, message, size)
        if moe:
            took_us += moe * all_reduce_us(self.hardware, message * split.copies, split.devices)
        return took_us / 1e3

    def _elementwise_ms(self, tokens: int) -> float:
        """Two fused norms, rotary embedding with the cache write, the activation; in FP8 one more quantisation
        (the others are fused with a norm or the activation)."""
        shape, tp = self.shape, self.settings.tensor_parallel_size
        sheet = self.hardware.elementwise
        wide = 0 if shape.num_experts else shape.intermediate_size
        heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        elements = 2 * 4 * shape.hidden_size + (2 * heads + 3 * wide) / tp
        kernels = 4.0 + (MOE_KERNELS if shape.num_experts else 0) + (2 if shape.qk_norm else 0)
        if self._linear.compute in ("fp8", "int8"):
            elements += 2 * (2 * shape.hidden_size + (heads + wide) / tp) * 0.75
            kernels += 1
        rate = self.hardware.memory_bandwidth_gb_s * 1e3 * sheet.bandwidth_share
        layer = kernels * sheet.floor_us + tokens * elements * 2 / rate
        return (shape.num_layers * layer + shape.num_moe_layers * self._expert_rows_us(tokens, rate)) / 1e3

    def _expert_rows_us(self, tokens: int, rate: float) -> float:
        """What reads and writes the rows of tokens at their experts between and after the products.

        A shared expert has its own activation, and its sum is added to that of the others.
        """
        shape, split = self.shape, self._split
        rows = tokens * shape.experts_per_token * split.copies / (split.devices if split.whole else 1)
        elements = rows * (shape.hidden_size + 3 * shape.moe_intermediate_size / split.parts)
        if shape.shared_expert_size:
            wide = shape.shared_expert_size / self.settings.tensor_parallel_size
            elements += tokens * 3 * (shape.hidden_size + wide)
        return elements * 2 / rate

    def _sample_parts(self, samples: int) -> tuple[float, float]:
        found = self._by_samples.get(samples)
        if found is None:
            shape, tp = self.shape, self.settings.tensor_parallel_size
            head = self._head.time_us(head_gemm(shape, tp), samples) / 1e3
            rate = self.hardware.memory_bandwidth_gb_s * 1e6 * self.hardware.elementwise.bandwidth_share
            logits = samples * shape.vocab_size
            draw = logits * 4 * SAMPLER_PASSES / rate
            if self.settings.sorted_sampling:
                draw += logits / 1e9 * self.hardware.elementwise.sort_us_per_mega_logit
            found = (head, draw)
            self._by_samples[samples] = found
        return found

    def _add_host(self, time: StepTime, decodes: int, prompts: int, tokens: int) -> None:
        """Adds what the device waits for: launches without a graph, and the host's share of the step."""
        host, settings, shape = self.hardware.host, self.settings, self.shape
        device = time.total
        each = host.eager_layer_launch_us if settings.enforce_eager else host.layer_launch_us
        layers_ms = shape.num_layers * each / 1e3
        experts_ms = shape.num_moe_layers * MOE_LAUNCH_US / 1e3 if each else 0.0
        if settings.enforce_eager or tokens > settings.max_graph_size:
            time.launch = max(0.0, layers_ms - device) + experts_ms
        elif prompts or not settings.attention_in_graphs:
            time.launch = max(0.0, layers_ms + experts_ms - device)
        planning, sequence_ms = host.step_us / 1e3, (decodes + prompts) * host.sequence_us / 1e3
        if settings.async_scheduling:
            planning = max(host.unhidden_us / 1e3, planning - device)
        time.host = planning + sequence_ms


# Beside the products of a layer with experts: small kernels (choosing experts, sorting rows by expert, quantising, the
# weighted sum), 26 us of a layer for one token in the times that gemm.py names; and the host's work that a step without
# a graph waits for, common to all published points.
MOE_KERNELS = 12
MOE_LAUNCH_US = 300.0

# Whose router vLLM multiplies in float32 on every device, which no tensor core does (pull 22203, minimax_m2.py), and what
# that takes even for few rows: 13.6 us for 2 (pull 44343), 9 % of a step of 64 decodes (sglang, pull 22744).
FLOAT32_ROUTERS = frozenset({"Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM"})
FLOAT32_FLOOR_US = 13.5

SAMPLER_PASSES = 6.0  # float32 passes over the logits: temperature, softmax, noise, arg max

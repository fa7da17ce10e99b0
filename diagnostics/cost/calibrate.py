"""Measures the machine it stands on, through an opened executor, and writes its hardware sheet.

Steps are timed whole, so the curve of products holds everything a step does beside attention, for the
model that was loaded; it carries over to other models as far as their steps are made of products too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.errors import CapacityError
from ...core.execute.base import Capacity, Executor
from ...core.quantization import dtype_bytes
from ...core.shape import ModelShape, dense_gemms, head_gemm, kv_bytes_per_token
from .probe import Probe, Progress

BATCHES = (1, 2, 4, 8, 16, 32)
CHUNKS = (64, 128, 256)
LONGEST = 384  # tokens of a row
SHORT = 16  # a context whose attention does not count


@dataclass(frozen=True, slots=True)
class Machine:
    """Plain figures of the machine: bytes/s of a copy (read and write counted) and FLOP/s of a product."""

    bandwidth: float
    flops: float


def measure_machine(mebibytes: int = 256, side: int = 1024) -> Machine:
    """Best of five large copies and of five float32 products, by numpy."""
    source = np.ones(mebibytes * 2**20 // 8)
    target = np.empty_like(source)
    copies = [_seconds(lambda: np.copyto(target, source)) for _ in range(5)]
    left, right = (np.ones((side, side), dtype=np.float32) for _ in range(2))
    products = [_seconds(lambda: left @ right) for _ in range(5)]
    return Machine(2 * source.nbytes / min(copies), 2 * side**3 / min(products))


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of measured steps."""

    decode: dict[tuple[int, int], float]  # by sequences and context
    chunk: dict[tuple[int, int], float]  # by tokens and start


def measure_steps(executor: Executor, capacity: Capacity, progress: Progress | None = None) -> Timings:
    """Times decodes of growing batches at a short and a long context, and chunks of growing size and start."""
    say = progress or (lambda _: None)
    most = min(capacity.max_num_seqs, BATCHES[-1])
    blocks = min(capacity.num_blocks // most, LONGEST // capacity.block_size)
    length = min(capacity.max_model_len - 1, blocks * capacity.block_size - 1)
    if length < 4 * SHORT:
        raise CapacityError(
            f"the cache holds {capacity.num_blocks} blocks of {capacity.block_size} tokens: too few to measure "
            f"{most} sequences; raise kv_cache_memory_bytes or lower max_num_seqs"
        )
    probe = Probe(executor, capacity, most, length)
    probe.begin()
    say(f"filling {most} rows of {length:,} tokens")
    probe.fill(256)
    decode, chunk = {}, {}
    for sequences in (n for n in BATCHES if n <= most):
        for context in (SHORT, (SHORT + length) // 2, length):
            say(f"{sequences} decodes at {context:,} tokens")
            decode[(sequences, context)] = probe.decode_ms(sequences, context)
    for tokens in (n for n in CHUNKS if n < length):
        for start in sorted({0, max(0, (length - tokens) // 2), length - tokens}):
            say(f"a chunk of {tokens} tokens at {start:,}")
            chunk[(tokens, start)] = probe.chunk_ms(tokens, start, repeats=3)
    return Timings(decode, chunk)


def fit_machine(timings: Timings, machine: Machine, shape: ModelShape, dtype: str) -> dict[str, Any]:
    """The curves of a sheet from measured steps: products by tokens, attention by bandwidth and by peak."""
    prefill_share = _prefill_share(timings, machine, shape)
    decode_share = _decode_share(timings, machine, shape, dtype)
    tokens, efficiency = _efficiencies(timings, machine, shape, dtype, prefill_share)
    source = f"measured with {shape.name} in {dtype}"
    return {
        "gemm": {
            dtype: {
                "floor_us": 0.0,
                "tokens": tokens,
                "n": [1],
                "k": [1],
                "efficiency_percent": [[[round(100 * share, 2)]] for share in efficiency],
                "source": source,
            }
        },
        "decode_attention": {
            "bfloat16": {
                "floor_us": 0.0,
                "us_per_kv_head": 0.0,
                "us_per_head": 0.0,
                "bandwidth_share": round(decode_share, 4),
                "mean_error_percent": 0.0,
                "source": source,
            }
        },
        "prefill_attention": {
            "bfloat16": {
                "floor_us": 0.0,
                "us_per_mega_element": 0.0,
                "compute_share": round(prefill_share, 4),
                "mean_error_percent": 0.0,
                "source": source,
            }
        },
    }


def _decode_share(timings: Timings, machine: Machine, shape: ModelShape, dtype: str) -> float:
    """Share of the bandwidth at which decodes read the cache: bytes over the time beyond a short context's."""
    per_token = kv_bytes_per_token(shape, dtype)
    moved = spent = 0.0
    for (sequences, context), ms in timings.decode.items():
        extra = ms - timings.decode[(sequences, SHORT)]
        if context > SHORT and extra > 0:
            moved += sequences * (context - SHORT) * per_token
            spent += extra / 1e3
    return moved / machine.bandwidth / spent if spent else 1.0


def _prefill_share(timings: Timings, machine: Machine, shape: ModelShape) -> float:
    """Share of the peak at which chunks attend to what was cached before them."""
    flops = spent = 0.0
    for (tokens, start), ms in timings.chunk.items():
        extra = ms - timings.chunk[(tokens, 0)]
        if start and extra > 0:
            flops += 4 * shape.num_heads * shape.head_dim * tokens * start * shape.num_kv_layers
            spent += extra / 1e3
    return flops / machine.flops / spent if spent else 1.0


def _efficiencies(
    timings: Timings, machine: Machine, shape: ModelShape, dtype: str, prefill_share: float
) -> tuple[list[int], list[float]]:
    """Share of the roofline by tokens: whole steps less attention, over what their products would take."""
    element = dtype_bytes(dtype)
    gemms, head = dense_gemms(shape), head_gemm(shape)

    def roof_s(n: int, k: int, rows: float) -> float:
        moved = (n * k + rows * k) * element + rows * n * 2
        return max(moved / machine.bandwidth, 2 * rows * n * k / machine.flops)

    def products_s(rows: float) -> float:
        return sum(g.count * roof_s(g.n, g.k, rows) for g in gemms)

    found: dict[int, float] = {}
    for (sequences, context), ms in timings.decode.items():
        if context == SHORT:
            found[sequences] = (products_s(sequences) + roof_s(head.n, head.k, sequences)) / (ms / 1e3)
    head_s = roof_s(head.n, head.k, 1) / found[min(found)]
    width = shape.num_heads * shape.head_dim
    for (tokens, start), ms in timings.chunk.items():
        if start == 0 and tokens > max(n for n, _ in timings.decode):
            pairs = tokens * (tokens + 1) / 2
            attention_s = 4 * width * pairs * shape.num_kv_layers / (machine.flops * prefill_share)
            found[tokens] = products_s(tokens) / max(ms / 1e3 - head_s - attention_s, ms / 1e4)
    tokens_axis = sorted(found)
    return tokens_axis, [found[tokens] for tokens in tokens_axis]


def machine_sheet(
    name: str,
    memory_bytes: int,
    machine: Machine,
    curves: dict[str, Any],
    host_us: tuple[float, float],
    dtype: str,
) -> dict[str, Any]:
    """The whole sheet. host_us: microseconds of a step, and of each sequence in it."""
    return {
        "name": name,
        "aliases": [],
        "source": "measured on this machine by `engine calibrate`",
        "device_type": "cpu",
        "memory_gib": round(memory_bytes / 2**30, 2),
        "memory_bandwidth_gb_s": round(machine.bandwidth / 1e9, 2),
        "compute_tflops": {dtype: round(machine.flops / 1e12, 4)},
        "l2_mib": 0,
        "compute_capability": "cpu",
        "interconnect": "none",
        "host": {
            "step_us": round(host_us[0], 1),
            "unhidden_us": round(host_us[0], 1),
            "sequence_us": round(max(0.0, host_us[1]), 2),
            "layer_launch_us": 0,
            "eager_layer_launch_us": 0,
            "request_latency_us": 2000,
            "frontend_request_us": 2000,
            "frontend_token_us": 50,
            "source": "steps of the scheduler measured here; requests typical of this engine's HTTP process",
        },
        "error_band": {
            "tpot_percent": 10,
            "ttft_percent": 15,
            "moe_tpot_percent": 30,
            "moe_ttft_percent": 40,
            "source": "typical of a machine just calibrated; `engine simulate --check-against here` measures it",
        },
        "elementwise": {
            "floor_us": 0,
            "bandwidth_share": 1000,
            "sort_us_per_mega_logit": 0,
            "source": "contained in the products' curve",
        },
        **curves,
    }

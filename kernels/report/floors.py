"""Bytes and operations that a kernel cannot do without, and the time they take at an H100's published limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# NVIDIA H100 SXM datasheet: memory bandwidth, dense bf16 and FP8 rates.
H100_BYTES_PER_S, H100_BF16_FLOPS, H100_FP8_FLOPS = 3.35e12, 989e12, 1979e12
# The same datasheet's boost clock, and the SM's four schedulers of one instruction a cycle (Hopper white paper).
H100_SMS, H100_CYCLES_PER_S, SCHEDULERS = 132, 1.755e9, 4
# Exponentials of an SM in a cycle (CUDA programming guide, throughput of native arithmetic instructions, 9.0).
EXPONENTIALS = 16
# Latency of device memory under load: 0.75 us, well above the 0.5 us of one idle access.
LOADED_LATENCY_S = 0.75e-6


@dataclass(frozen=True, slots=True)
class Floor:
    """Least traffic and work of one kernel call."""

    kernel: str
    shape: str
    bytes_moved: float
    flops: float
    flops_per_s: float = H100_BF16_FLOPS

    @property
    def micros(self) -> float:
        """The larger of the two times, in microseconds."""
        return max(self.bytes_moved / H100_BYTES_PER_S, self.flops / self.flops_per_s) * 1e6

    @property
    def bound(self) -> str:
        return "bytes" if self.bytes_moved / H100_BYTES_PER_S >= self.flops / self.flops_per_s else "FLOPs"


def decode_attention(batch: int, context: int, heads: int, kv_heads: int, dim: int, kv_bytes: int) -> Floor:
    """One query a sequence: all keys and values are read once, queries and results pass once."""
    kv = 2 * batch * context * kv_heads * dim * kv_bytes
    shape = f"{batch} x {context:,} tokens, {heads}/{kv_heads} heads of {dim}, KV {8 * kv_bytes} bit"
    return Floor("decode", shape, kv + 4 * batch * heads * dim, 4 * batch * context * heads * dim)


def prefill_attention(chunk: int, context: int, heads: int, kv_heads: int, dim: int) -> Floor:
    """A chunk at the end of a context: a query sees its own past, half of the chunk on average."""
    seen = chunk * (context - chunk) + chunk * (chunk + 1) / 2
    moved = 2 * 2 * context * kv_heads * dim + 4 * chunk * heads * dim
    shape = f"{chunk:,} of {context:,} tokens, {heads}/{kv_heads} heads of {dim}"
    return Floor("prefill", shape, moved, 4 * seen * heads * dim)


def gemm(rows: int, out_features: int, in_features: int, weight_bytes: int) -> Floor:
    """Weights once, inputs and results once; inputs are as wide as the weights."""
    moved = out_features * in_features * weight_bytes + rows * (in_features * weight_bytes + 2 * out_features)
    rate = H100_FP8_FLOPS if weight_bytes == 1 else H100_BF16_FLOPS
    name = "linear-fp8" if weight_bytes == 1 else "linear-bf16"
    return Floor(
        name,
        f"{rows} x {in_features:,} -> {out_features:,}",
        moved,
        2 * rows * out_features * in_features,
        rate,
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a main loop on an H100's SM: what it must wait for, and how many cycles it takes to issue."""

    build: str
    what: str  # "bytes" or "FLOPs"
    limit_cycles: float  # that memory or tensor cores take for the turn
    issue_cycles: float  # that its instructions take, or its exponentials where that is more
    in_flight_bytes: float  # asked for ahead by all blocks of an SM

    @property
    def issue_share(self) -> float:
        """Of the time the limit takes; below 1 the limit can be reached."""
        return self.issue_cycles / self.limit_cycles


def bytes_needed_in_flight() -> float:
    """An SM's share of what memory delivers during one latency."""
    return H100_BYTES_PER_S * LOADED_LATENCY_S / H100_SMS


def streaming_turn(build: str, figures: Mapping[str, Any], tile_bytes: int, ahead: int) -> Turn:
    """Of a loop that reads `tile_bytes` a turn, `ahead` turns before they are used."""
    per_cycle = H100_BYTES_PER_S / H100_SMS / H100_CYCLES_PER_S
    return Turn(
        build,
        "bytes",
        tile_bytes / per_cycle,
        _issue_cycles(figures),
        figures["blocks_per_sm"] * ahead * tile_bytes,
    )


def multiplying_turn(build: str, figures: Mapping[str, Any], flops: int, *, fp8: bool = False) -> Turn:
    """Of a loop that computes `flops` a turn."""
    per_cycle = (H100_FP8_FLOPS if fp8 else H100_BF16_FLOPS) / H100_SMS / H100_CYCLES_PER_S
    return Turn(build, "FLOPs", flops / per_cycle, _issue_cycles(figures), 0.0)


def _issue_cycles(figures: Mapping[str, Any]) -> float:
    issued = figures["loop_instructions"] / SCHEDULERS, figures["loop_exponentials"] * 32 / EXPONENTIALS
    return figures["warps"] * max(issued)


def turns(builds: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Of the kernels that the memory or the tensor cores of an H100 should bound."""
    of = {b["name"]: b for b in builds if b["arch"] == 90}
    # Decode: K and V of a tile; at the end of a turn the next two tiles are on their way.
    streams = {"decode-d128-g8-p16": (2 * 64 * 128 * 2, 2), "decode-d64-g4-p16": (2 * 64 * 64 * 2, 2)}
    streams |= {"decode-d256-g4-p16": (2 * 32 * 256 * 2, 2), "decode-d128-g8-p16-fp8": (2 * 64 * 128, 2)}
    streams |= {"experts-16x64": (64 * 64 * 2, 3), "experts-16x64-fp8": (64 * 128, 3)}
    # 64 columns of a row are 32 bytes of numbers and two scales.
    streams |= {
        "experts-mxfp4-16x128-gated-s10": (128 * 34, 8),
        "experts-mxfp4-16x256-gated-s6": (256 * 34, 4),
    }
    streams |= {"experts-mxfp4-16x256-s6": (256 * 34, 4)}
    streams |= {"fp8-rows-64x256": (256 * 128, 3), "fp8-blocks-64x256": (256 * 128, 3)}
    products = {
        "prefill-d128-g8-r128": (4 * 128 * 128 * 128, False),
        "prefill-d256-g4-r128": (4 * 128 * 32 * 256, False),
        "prefill-d64-g8-r128-sinks": (4 * 128 * 128 * 64, False),
        "experts-64x128": (2 * 64 * 128 * 64, False),
        "experts-mxfp4-128x128-gated-s4": (2 * 128 * 128 * 64, False),
    }
    products |= {
        "fp8-blocks-128x128": (2 * 128**3, True),
        "fp8-rows-128x128": (2 * 128**3, True),
        "experts-64x128-fp8": (2 * 64 * 128 * 128, True),
    }
    return [
        *(streaming_turn(name, of[name], *sizes) for name, sizes in streams.items()),
        *(multiplying_turn(name, of[name], flops, fp8=fp8) for name, (flops, fp8) in products.items()),
    ]


MXFP4_BYTES = 17 / 32  # of a number and its share of a scale


def experts(places: int, num_experts: int, hidden: int, inner: int, weight_bytes: float) -> Floor:
    """Both grouped products of a layer: every expert is read once, so long as each has a row."""
    weights = 3 * num_experts * hidden * inner * weight_bytes
    moved = weights + places * (2 * hidden + 3 * inner) * 2
    shape = f"{places:,} rows over {num_experts} experts of {hidden:,} x {inner:,}, {8 * weight_bytes:g} bit"
    rate = H100_FP8_FLOPS if weight_bytes == 1 else H100_BF16_FLOPS
    return Floor("experts", shape, moved, 6 * places * hidden * inner, rate)


def draws(rows_drawn: int, vocab: int) -> Floor:
    """A float32 logit is read once at least; further walks of a filtered row stay in the cache."""
    return Floor("sample", f"{rows_drawn} rows of {vocab:,} logits", 4.0 * rows_drawn * vocab, 0.0)


def rows(kernel: str, tokens: int, read: int, written: int) -> Floor:
    """A kernel over rows: `read` and `written` bf16 elements a token, work that is lost in the noise."""
    return Floor(
        kernel, f"{tokens:,} tokens, {read:,} in, {written:,} out", 2 * tokens * (read + written), 0.0
    )


def floors() -> list[Floor]:
    """Of an 8B layer (32/8 heads of 128, 4096, 14336), a 70B one (64/8 heads, 8192, 28672), and gpt-oss's experts."""
    return [
        decode_attention(64, 2048, 32, 8, 128, 2),
        decode_attention(64, 8192, 64, 8, 128, 2),
        decode_attention(64, 8192, 64, 8, 128, 1),
        decode_attention(1, 131072, 32, 8, 128, 2),
        prefill_attention(8192, 8192, 32, 8, 128),
        prefill_attention(2048, 8192, 64, 8, 128),
        gemm(64, 14336 * 2, 4096, 2),
        gemm(64, 28672 * 2, 8192, 1),
        gemm(2048, 28672 * 2, 8192, 1),
        rows("rms-norm", 2048, 8192, 8192),
        rows("rms-norm-residual", 2048, 2 * 8192, 2 * 8192),
        rows("quantize-rows-residual-norm", 2048, 2 * 8192, 8192 + 8192 // 2),
        rows("quantize-rows-gated", 2048, 2 * 28672, 28672 // 2),
        rows("silu-mul", 2048, 2 * 28672, 28672),
        rows("rope-kv-write", 2048, (64 + 16) * 128, (64 + 16) * 128),
        experts(64 * 8, 128, 2048, 768, 2),
        experts(64 * 8, 128, 2048, 768, 1),
        *(
            experts(tokens * 4, num_experts, 2880, 2880, MXFP4_BYTES)
            for tokens, num_experts in ((1, 4), (64, 32), (64, 128), (8192, 32), (8192, 128))
        ),
        draws(256, 128_256),
        Floor("prepare-batch", "2,048 tokens", 2048 * (8 + 4 + 3 * 8), 0.0),
    ]

"""Bytes and operations that a kernel cannot do without, and the time they take at an H100's published limits."""

from __future__ import annotations

from dataclasses import dataclass

# NVIDIA H100 SXM datasheet: memory bandwidth, dense bf16 and FP8 rates.
H100_BYTES_PER_S, H100_BF16_FLOPS, H100_FP8_FLOPS = 3.35e12, 989e12, 1979e12


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


def rows(kernel: str, tokens: int, read: int, written: int) -> Floor:
    """A kernel over rows: `read` and `written` bf16 elements a token, work that is lost in the noise."""
    return Floor(
        kernel, f"{tokens:,} tokens, {read:,} in, {written:,} out", 2 * tokens * (read + written), 0.0
    )


def floors() -> list[Floor]:
    """Of an 8B layer (32/8 heads of 128, 4096, 14336) and a 70B one (64/8 heads, 8192, 28672)."""
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
        rows("silu-mul", 2048, 2 * 28672, 28672),
        rows("rope-kv-write", 2048, (64 + 16) * 128, (64 + 16) * 128),
    ]

"""Medians of `triton.testing.do_bench`, each beside what the device's own copy and product reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.testing import do_bench

from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight
from camshaft.kernels.paged_attention import Sequences, paged_attention
from camshaft.kernels.quantize_rows import quantize_rows
from camshaft.kernels.rms_norm import rms_norm
from camshaft.kernels.rope_kv_write import rope_kv_write
from camshaft.kernels.silu_mul import silu_mul

CUDA = torch.device("cuda")
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


def median_s(run: Callable[[], Any]) -> float:
    found: Any = do_bench(run, warmup=25, rep=150, return_mode="median")
    return float(found) / 1e3


def copy_bytes_per_s() -> float:
    """Read plus written bytes of a copy of 2 GiB."""
    source = torch.empty(2**31, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    return 2 * source.numel() / median_s(lambda: target.copy_(source))


def product_flops() -> float:
    """bf16 product of 8192 x 8192 x 8192."""
    a, b = (torch.randn(8192, 8192, device=CUDA, dtype=BF16) for _ in range(2))
    return 2 * 8192**3 / median_s(lambda: a @ b)


def _sequences(batch: int, context: int, queries: int, page: int = 16) -> Sequences:
    blocks = -(-context // page)
    tables = torch.randperm(batch * blocks, device=CUDA).view(batch, blocks).int()
    starts = torch.arange(batch + 1, device=CUDA, dtype=torch.int32) * queries
    contexts = torch.full((batch,), context, dtype=torch.int32, device=CUDA)
    return Sequences(starts, contexts, tables, batch if queries == 1 else 0, queries, context)


def _cache(batch: int, context: int, kv_heads: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    size = (batch * -(-context // 16), kv_heads, 16, dim)
    return [torch.randn(size, device=CUDA, dtype=BF16).to(dtype) for _ in range(2)]


def decode(
    batch: int, context: int, heads: int, kv_heads: int, dtype: torch.dtype, copy: float
) -> dict[str, Any]:
    q = torch.randn(batch, heads * 128, device=CUDA, dtype=BF16)
    k, v = _cache(batch, context, kv_heads, 128, dtype)
    sequences, out = _sequences(batch, context, 1), torch.empty_like(q)
    seconds = median_s(lambda: paged_attention(q, k, v, sequences, 128**-0.5, None, out))
    moved = 2 * batch * context * kv_heads * 128 * k.element_size()
    return {
        "what": f"decode {batch} x {context}, {heads}/{kv_heads} heads, KV {dtype}".replace("torch.", ""),
        "us": seconds * 1e6, "GB": moved / 1e9, "of_copy": moved / seconds / copy,
        "target": (0.75 if dtype == FP8 else 0.85) if moved >= 1e9 else None,
    }  # fmt: skip


def prefill(chunk: int, context: int, heads: int, kv_heads: int, rate: float) -> list[dict[str, Any]]:
    q = torch.randn(chunk, heads * 128, device=CUDA, dtype=BF16)
    k, v = _cache(1, context, kv_heads, 128, BF16)
    sequences, out = _sequences(1, context, chunk), torch.empty_like(q)
    flops = 4 * heads * 128 * (chunk * (context - chunk) + chunk * (chunk + 1) / 2)
    seconds = median_s(lambda: paged_attention(q, k, v, sequences, 128**-0.5, None, out))
    target = 0.6 if chunk >= 8192 else None
    rows = [
        {
            "what": f"prefill {chunk} of {context}",
            "us": seconds * 1e6,
            "of_matmul": flops / seconds / rate,
            "target": target,
        }
    ]
    if chunk == context:
        peer_q, peer_k, peer_v = (
            torch.randn(1, n, chunk, 128, device=CUDA, dtype=BF16) for n in (heads, kv_heads, kv_heads)
        )
        peer = median_s(
            lambda: torch.nn.functional.scaled_dot_product_attention(
                peer_q, peer_k, peer_v, is_causal=True, enable_gqa=True
            )
        )
        rows.append(
            {
                "what": f"  torch's attention, {chunk}, not paged",
                "us": peer * 1e6,
                "of_matmul": flops / peer / rate,
            }
        )
    return rows


def small_kernels(copy: float) -> list[dict[str, Any]]:
    """Over 2,048 tokens of a 70B layer."""
    tokens, hidden, inner = 2048, 8192, 28672
    x, weight = (
        torch.randn(tokens, hidden, device=CUDA, dtype=BF16),
        torch.randn(hidden, device=CUDA, dtype=BF16),
    )
    both = torch.randn(tokens, 2 * inner, device=CUDA, dtype=BF16)
    qkv = torch.randn(tokens, (64 + 16) * 128, device=CUDA, dtype=BF16)
    k, v = _cache(1, tokens, 8, 128, BF16)
    positions, cos_sin = torch.arange(tokens, device=CUDA), torch.randn(tokens, 128, device=CUDA)
    normed, gated = torch.empty_like(x), torch.empty(tokens, inner, device=CUDA, dtype=BF16)
    runs: list[tuple[str, Callable[[], Any], int]] = [
        ("rms_norm", lambda: rms_norm(x, weight, 1e-5, normed), 4 * x.numel()),
        ("silu_mul", lambda: silu_mul(both, gated), 6 * gated.numel()),
        ("quantize_rows", lambda: quantize_rows(x), 3 * x.numel()),
        (
            "rope_kv_write",
            lambda: rope_kv_write(qkv, positions, positions, cos_sin, k, v),
            2 * 2 * qkv.numel(),
        ),
    ]
    return [
        {"what": f"{name} of {tokens} tokens", "us": (s := median_s(run)) * 1e6, "of_copy": moved / s / copy}
        for name, run, moved in runs
    ]


def fp8_weight(rows: int, columns: int, *, blocked: bool = False) -> Fp8Weight:
    """Random, with scales that keep products near 1."""
    values = torch.randn(rows, columns, device=CUDA, dtype=BF16).to(FP8)
    size = (-(-rows // 128), columns // 128) if blocked else (rows,)
    return Fp8Weight(values, torch.full(size, columns**-0.5, device=CUDA))


def fp8_layers(rate: float, copy: float) -> list[dict[str, Any]]:
    rows = []
    for blocked in (False, True):
        layer = Fp8Linear(fp8_weight(57344, 8192, blocked=blocked))
        for tokens in (64, 2048):
            x = torch.randn(tokens, 8192, device=CUDA, dtype=BF16)
            seconds = median_s(lambda layer=layer, x=x: layer(x))
            rows.append({
                "what": f"fp8 linear {tokens} x 8192 -> 57344, {'blocks' if blocked else 'rows'}", "us": seconds * 1e6,
                "of_copy": layer.weight_bytes / seconds / copy, "of_matmul": 2 * tokens * 8192 * 57344 / seconds / rate,
            })  # fmt: skip
    return rows


def decode_step(
    name: str, hidden: int, inner: int, heads: int, layers: int, copy: float, batch: int = 64
) -> dict[str, Any]:
    """A decode step of `layers` layers with random FP8 weights and 2,048 cached tokens a sequence, in a graph."""
    kv_heads, context = 8, 2048
    width = (heads + 2 * kv_heads) * 128
    sizes = ((width, hidden), (hidden, heads * 128), (2 * inner, hidden), (hidden, inner))
    stack = [[Fp8Linear(fp8_weight(*size)) for size in sizes] for _ in range(layers)]
    caches = [_cache(batch, context, kv_heads, 128, BF16) for _ in range(layers)]
    sequences = _sequences(batch, context, 1)
    x, weight = (
        torch.randn(batch, hidden, device=CUDA, dtype=BF16),
        torch.ones(hidden, device=CUDA, dtype=BF16),
    )
    positions = torch.full((batch,), context - 1, device=CUDA)
    slots = sequences.block_tables[:, -1].long() * 16 + 15
    cos_sin = torch.randn(context, 128, device=CUDA)

    def step() -> None:
        for (qkv_layer, output, gate_up, down), (k, v) in zip(stack, caches, strict=True):
            qkv = qkv_layer(rms_norm(x, weight, 1e-5))
            rope_kv_write(qkv, positions, slots, cos_sin, k, v)
            output(paged_attention(qkv[:, : heads * 128], k, v, sequences, 128**-0.5), x, accumulate=True)
            down(silu_mul(gate_up(rms_norm(x, weight, 1e-5))), x, accumulate=True)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    seconds = median_s(graph.replay)
    moved = sum(layer.weight_bytes for part in stack for layer in part)
    moved += layers * 2 * batch * context * kv_heads * 128 * 2
    return {
        "what": f"decode step, {name}, {layers} layers, batch {batch}", "us": seconds * 1e6, "GB": moved / 1e9,
        "of_copy": moved / seconds / copy, "target": 0.8,
    }  # fmt: skip


def timings() -> dict[str, Any]:
    """Everything, as data."""
    copy, rate = copy_bytes_per_s(), product_flops()
    jobs: list[Callable[[], Any]] = [
        *(lambda a=a, d=d: decode(*a, d, copy) for a in ((64, 8192, 64, 8), (64, 2048, 32, 8), (1, 131072, 32, 8), (8, 8192, 32, 8))
          for d in (BF16, FP8)),
        *(lambda a=a: prefill(*a, rate) for a in ((8192, 8192, 32, 8), (2048, 8192, 64, 8), (512, 4096, 32, 8))),
        lambda: small_kernels(copy),
        lambda: fp8_layers(rate, copy),
        lambda: decode_step("8B shapes", 4096, 14336, 32, 32, copy),
        lambda: decode_step("70B shapes", 8192, 28672, 64, 10, copy),
    ]  # fmt: skip
    rows: list[dict[str, Any]] = []
    for job in jobs:
        try:
            made = job()
        except Exception as error:  # one failure must not cost the rest of the run
            made = {"what": "failed", "error": f"{type(error).__name__}: {error}"[:500]}
        rows += made if isinstance(made, list) else [made]
        torch.cuda.empty_cache()
    return {"copy_bytes_per_s": copy, "matmul_flops": rate, "rows": rows}

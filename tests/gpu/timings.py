"""Medians of `triton.testing.do_bench`, each beside what the device's own copy and product reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.testing import do_bench

from camshaft.kernels.experts import make_experts, route
from camshaft.kernels.experts.fp8 import Fp8Experts
from camshaft.kernels.experts.mxfp4 import make_mxfp4_experts
from camshaft.kernels.fp8 import FP8
from camshaft.kernels.linear import InputNorm
from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight, quantize_weight
from camshaft.kernels.paged_attention import Sequences, paged_attention
from camshaft.kernels.quantize_rows import quantize_rows
from camshaft.kernels.rms_norm import rms_norm
from camshaft.kernels.rope_kv_write import rope_kv_write
from camshaft.kernels.silu_mul import silu_mul

from .check import Place
from .executor_checks import host_timings
from .mxfp4_checks import drawn
from .steps import decode_step, host_gap

CUDA = torch.device("cuda")
BF16 = torch.bfloat16
PLACE = Place(CUDA, BF16)


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


def fp8_product_flops() -> float:
    """The same in FP8 with a scale a row, by torch's own product."""
    a, b = (torch.randn(8192, 8192, device=CUDA, dtype=BF16).to(FP8) for _ in range(2))
    ones = torch.ones(8192, 1, device=CUDA)
    product = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]
    seconds = median_s(lambda: product(a, b.t(), ones, ones.t(), out_dtype=BF16, use_fast_accum=True))
    return 2 * 8192**3 / seconds


def _sequences(batch: int, context: int, queries: int, page: int = 16) -> Sequences:
    blocks = -(-context // page)
    tables = torch.randperm(batch * blocks, device=CUDA).view(batch, blocks).int()
    starts = torch.arange(batch + 1, device=CUDA, dtype=torch.int32) * queries
    contexts = torch.full((batch,), context, dtype=torch.int32, device=CUDA)
    return Sequences(starts, contexts, tables, batch if queries == 1 else 0, queries, context)


def _cache(batch: int, context: int, kv_heads: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    size = (batch * -(-context // 16), kv_heads, 16, dim)
    return [torch.randn(size, device=CUDA, dtype=BF16).to(dtype) for _ in range(2)]


def sinks_decode(copy: float) -> dict[str, Any]:
    """A full layer of gpt-oss."""
    batch, context, heads, kv_heads, dim = 64, 16384, 64, 8, 64
    q, sinks = torch.randn(batch, heads * dim, device=CUDA, dtype=BF16), torch.randn(heads, device=CUDA)
    k, v = _cache(batch, context, kv_heads, dim, BF16)
    sequences, out = _sequences(batch, context, 1), torch.empty_like(q)
    seconds = median_s(lambda: paged_attention(q, k, v, sequences, 0.125, None, out, sinks=sinks))
    return {
        "what": f"decode {batch} x {context}, {heads}/{kv_heads} heads of {dim}, sinks", "us": seconds * 1e6,
        "of_copy": 2 * k.numel() * 2 / seconds / copy,
    }  # fmt: skip


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
        "judged": ("decode-fp8" if dtype == FP8 else "decode-bf16") if moved >= 1e9 else None,
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
            "judged": "prefill" if target else None,
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
        flash = _flash(peer_q, peer_k, peer_v)
        if flash is not None:
            rows.append(
                {"what": "  FlashAttention, not paged", "us": flash * 1e6, "of_matmul": flops / flash / rate}
            )
    return rows


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float | None:
    """Seconds of the flash-attn package over [1, heads, T, dim]; None where it is not installed."""
    try:
        from flash_attn import flash_attn_func  # type: ignore[import-not-found]
    except ImportError:
        return None
    parts = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    return median_s(lambda: flash_attn_func(*parts, causal=True))


def uneven_decode(copy: float) -> dict[str, Any]:
    """One sequence of 131,072 tokens among 63 of 512: the long one must not run on a few SMs."""
    batch, heads, kv_heads, page = 64, 32, 8, 16
    contexts = torch.full((batch,), 512, dtype=torch.int32, device=CUDA)
    contexts[5] = 131072
    needed = [-(-int(c) // page) for c in contexts.tolist()]
    tables = torch.zeros((batch, max(needed)), dtype=torch.int32, device=CUDA)
    order = torch.randperm(sum(needed), device=CUDA).int()
    for i, part in enumerate(order.split(needed)):
        tables[i, : len(part)] = part
    k, v = _cache(1, sum(needed) * page, kv_heads, 128, BF16)
    starts = torch.arange(batch + 1, device=CUDA, dtype=torch.int32)
    sequences = Sequences(starts, contexts, tables, batch, 1, 131072)
    q = torch.randn(batch, heads * 128, device=CUDA, dtype=BF16)
    out = torch.empty_like(q)
    seconds = median_s(lambda: paged_attention(q, k, v, sequences, 128**-0.5, None, out))
    moved = 2 * int(contexts.sum()) * kv_heads * 128 * 2
    return {
        "what": "decode 1 x 131072 among 63 x 512, 32/8 heads", "us": seconds * 1e6, "GB": moved / 1e9,
        "of_copy": moved / seconds / copy,
    }  # fmt: skip


def experts_layer(copy: float) -> list[dict[str, Any]]:
    """The experts of a Qwen3 30B layer over 64 tokens, in bf16 and FP8."""
    num_experts, hidden, inner, tokens, top_k = 128, 2048, 768, 64, 8
    x, out = (torch.randn(tokens, hidden, device=CUDA, dtype=BF16) for _ in range(2))
    ids, weights = route(torch.randn(tokens, num_experts, device=CUDA), top_k, renormalise=True)
    sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
    wide = [[torch.randn(size, device=CUDA, dtype=BF16) / 50 for _ in range(num_experts)] for size in sizes]
    narrow = [[quantize_weight(weight) for weight in part] for part in wide]
    read = len(ids.unique()) / num_experts
    rows = []
    for name, layer in (("bf16", make_experts(*wide)), ("fp8", Fp8Experts(narrow[0], narrow[1], narrow[2]))):
        seconds = median_s(lambda layer=layer: layer(x, ids, weights, out))
        moved = layer.weight_bytes * read
        rows.append({
            "what": f"experts {tokens} x {top_k} of {num_experts}, {hidden} x {inner}, {name}", "us": seconds * 1e6,
            "of_copy": moved / seconds / copy,
        })  # fmt: skip
    return rows


def packed_experts_layer(copy: float, rate: float) -> list[dict[str, Any]]:
    """gpt-oss's experts in MXFP4: decodes and prompts, as kernels/REPORT.md has them on paper."""
    hidden, top_k, rows = 2880, 4, []
    for num_experts in (32, 128):
        weights = (drawn(PLACE, num_experts, 2 * hidden, hidden), drawn(PLACE, num_experts, hidden, hidden))
        layer = make_mxfp4_experts(*weights, BF16)
        del weights
        for tokens in (1, 8, 64, 2048, 8192):
            x, out = (torch.randn(tokens, hidden, device=CUDA, dtype=BF16) for _ in range(2))
            chosen = route(torch.randn(tokens, num_experts, device=CUDA), top_k, renormalise=True)
            moved = layer.weight_bytes * len(chosen[0].unique()) / num_experts
            seconds = median_s(lambda layer=layer, x=x, chosen=chosen, out=out: layer(x, *chosen, out))
            rows.append({
                "what": f"experts {tokens} x {top_k} of {num_experts}, {hidden} x {hidden}, mxfp4", "us": seconds * 1e6,
                "GB": moved / 1e9, "of_copy": moved / seconds / copy,
                "of_matmul": 6 * tokens * top_k * hidden**2 / seconds / rate,
            })  # fmt: skip
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
        ("rms_norm with residual", lambda: rms_norm(x, weight, 1e-5, normed, added=normed), 8 * x.numel()),
        ("quantize_rows", lambda: quantize_rows(x), 3 * x.numel()),
        (
            "quantize_rows with residual and norm",
            lambda: quantize_rows(x, norm=InputNorm(weight, 1e-5), added=normed),
            7 * x.numel(),
        ),
        ("quantize_rows with gate", lambda: quantize_rows(both, gated=True), 5 * gated.numel()),
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


Jobs = list[Callable[[], Any]]


def _rates(copy: float, rate: float) -> Jobs:
    """What everything is held against."""
    return [
        lambda: {"copy": copy_bytes_per_s()},
        lambda: {"matmul": product_flops()},
        lambda: {"matmul_fp8": fp8_product_flops()},
    ]


def _attention(copy: float, rate: float) -> Jobs:
    """What is judged first."""
    large, small = (
        ((64, 16384, 64, 8), (64, 16384, 32, 8)),
        ((64, 2048, 32, 8), (1, 131072, 32, 8), (8, 8192, 32, 8)),
    )
    prefills = ((2048, 8192, 64, 8), (512, 4096, 32, 8))
    return [
        *(lambda a=a, d=d: decode(*a, d, copy) for a in large for d in (BF16, FP8)),
        lambda: prefill(8192, 8192, 32, 8, rate),
        *(lambda a=a, d=d: decode(*a, d, copy) for a in small for d in (BF16, FP8)),
        lambda: uneven_decode(copy),
        lambda: sinks_decode(copy),
        *(lambda a=a: prefill(*a, rate) for a in prefills),
    ]


def _linear(copy: float, rate: float) -> Jobs:
    return [
        lambda: small_kernels(copy),
        lambda: fp8_layers(rate, copy),
        lambda: experts_layer(copy),
        lambda: packed_experts_layer(copy, rate),
    ]


def _steps(copy: float, rate: float) -> Jobs:
    return [lambda size=size: decode_step(size, median_s, copy) for size in ("70B layers", "8B")]


def _host(copy: float, rate: float) -> Jobs:
    return [lambda: host_gap("8B", CUDA), host_timings]


SECTIONS: dict[str, Callable[[float, float], Jobs]] = {
    "rates": _rates, "attention": _attention, "linear": _linear, "steps": _steps, "host": _host,
}  # fmt: skip

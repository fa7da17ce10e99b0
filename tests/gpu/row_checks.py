"""Kernels over rows: norm, gate, rotary embedding with the write of keys and values."""

from __future__ import annotations

import torch

from camshaft.kernels.rms_norm import reference as norm_reference
from camshaft.kernels.rms_norm.triton import rms_norm
from camshaft.kernels.rope_kv_write import HeadNorm
from camshaft.kernels.rope_kv_write import reference as rope_reference
from camshaft.kernels.rope_kv_write.triton import rope_kv_write
from camshaft.kernels.silu_mul import reference as gate_reference
from camshaft.kernels.silu_mul.triton import silu_mul

from .check import TOLERANCE, Check, Place, compare, seed_all


def norm(rows: int, width: int, *, residual: bool = False) -> Check:
    def run(place: Place) -> None:
        seed_all(width)
        x, weight = place.tensor(rows, width + 24)[:, :width], place.tensor(width)
        added, mine = place.tensor(rows, width) if residual else None, x.clone()
        expected, got = (torch.full((rows, width), 9.0).to(place.device, place.dtype) for _ in range(2))
        norm_reference.rms_norm(x, weight, 1e-5, expected, added)
        rms_norm(mine, weight, 1e-5, got, added)
        compare(got, expected, TOLERANCE[place.dtype])
        assert torch.equal(mine, x), "the sum that is kept differs"

    return Check(f"rms-norm-{rows}x{width}{'-residual' if residual else ''}", run)


def gate(rows: int, width: int) -> Check:
    def run(place: Place) -> None:
        seed_all(width)
        both = place.tensor(rows, 2 * width)
        expected, got = (torch.full((rows, width), 9.0).to(place.device, place.dtype) for _ in range(2))
        gate_reference.silu_mul(both, expected)
        silu_mul(both, got)
        compare(got, expected, TOLERANCE[place.dtype])

    return Check(f"silu-mul-{rows}x{width}", run)


def rope(heads: int, kv_heads: int, dim: int, page: int, *, norms: bool, far: bool = False) -> Check:
    """`far`: the pages written lie more than 2^31 elements behind the start of the cache."""

    def run(place: Place) -> None:
        seed_all(dim)
        tokens, first = 7, (2**31 // (kv_heads * page * dim) + 1 if far else 0)
        qkv = place.tensor(tokens, (heads + 2 * kv_heads) * dim)
        positions = torch.randint(0, 50, (tokens,), device=place.device)
        slots = torch.tensor([3, 17, 2 * page, -1, 5, 6, 3 * page - 1], device=place.device)
        slots = torch.where(slots < 0, slots, slots + first * page)
        angles = torch.randn(50, dim // 2)
        cos_sin = torch.cat([angles.cos(), angles.sin()], -1).to(place.device)
        weights = HeadNorm(place.tensor(dim), place.tensor(dim), 1e-6) if norms else None
        size = (first + 3, kv_heads, page, dim)
        caches = [torch.empty(size, dtype=place.dtype, device=place.device) for _ in range(2)]
        near = [torch.zeros((3, *size[1:]), dtype=place.dtype, device=place.device) for _ in range(2)]
        for cache in caches:
            cache[first:] = 0
        mine = qkv.clone()
        rope_reference.rope_kv_write(
            qkv,
            positions,
            torch.where(slots < 0, slots, slots - first * page),
            cos_sin,
            near[0],
            near[1],
            weights,
        )
        rope_kv_write(mine, positions, slots, cos_sin, caches[0], caches[1], weights)
        tolerance = TOLERANCE[place.dtype]
        compare(mine[:, : heads * dim], qkv[:, : heads * dim], tolerance)
        for cache, expected in zip(caches, near, strict=True):
            compare(cache[first:], expected, tolerance)

    extras = ("-norms" if norms else "") + ("-far" if far else "")
    return Check(f"rope-kv-write-{heads}h{kv_heads}-d{dim}-p{page}{extras}", run)


def rope_fp8() -> Check:
    """A cache in e4m3 holds k / k_scale and v / v_scale."""

    def run(place: Place) -> None:
        seed_all(5)
        qkv, zeros = place.tensor(4, 3 * 64), torch.zeros(4, dtype=torch.int64, device=place.device)
        cos_sin = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], -1).to(place.device)
        cache = [torch.zeros((1, 1, 16, 64), device=place.device).to(torch.float8_e4m3fn) for _ in range(2)]
        slots = torch.arange(4, device=place.device)
        plain = qkv.clone()
        rope_kv_write(qkv, zeros, slots, cos_sin, cache[0], cache[1], None, kv_scales=(0.5, 0.25))
        for i, (held, scale) in enumerate(zip(cache, (0.5, 0.25), strict=True)):
            source = plain[:, (1 + i) * 64 : (2 + i) * 64].float()
            expected = (source / scale).to(torch.float8_e4m3fn)
            kept = torch.ones_like(source, dtype=torch.bool)
            interpreted = place.device.type == "cpu"
            if interpreted:
                kept = expected.view(torch.uint8) % 8 != 0  # the interpreter loses carries
            # Nor does it round ties to even: neighbours differ by an eighth at most.
            compare(held[0, 0, :4].float()[kept], expected.float()[kept], 0.126 if interpreted else 1e-6)

    return Check("rope-kv-write-fp8", run)


CHECKS = [
    norm(5, 96),
    norm(1, 576),
    norm(2, 4096),
    norm(3, 576, residual=True),
    norm(2, 8192, residual=True),
    gate(3, 1500),
    gate(1, 14336),
    rope(6, 2, 64, 16, norms=False),
    rope(4, 1, 128, 32, norms=True),
    rope(2, 2, 256, 16, norms=True),
    rope(3, 3, 96, 8, norms=False),
    rope(2, 1, 64, 16, norms=False, far=True),
    rope_fp8(),
]

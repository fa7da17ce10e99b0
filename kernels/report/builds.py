"""The builds that the report covers: each kernel at the shapes of an 8B and a 70B Llama on one GPU."""

from __future__ import annotations

from ..experts.grouping import triton as grouping
from ..experts.routing import triton as routing
from ..fp8 import BLOCK, FP8_MAX
from ..launch import next_power_of_2, warps_of
from ..linear.fp8_product import triton as fp8_product
from ..paged_attention import decode, prefill
from ..paged_attention.triton import most_registers, prefill_plan
from ..prepare_batch import triton as prepare_batch
from ..quantize_rows import triton as quantize_rows
from ..rms_norm import triton as rms_norm
from ..rope_kv_write import triton as rope_kv_write
from ..sample import triton as sample
from ..silu_mul import triton as silu_mul
from .expert_builds import experts, mxfp4_experts
from .sass import ARCHES, FP8_ARCHES, Build

_CACHE = {"*bf16": "", "*fp8e4nv": "-fp8"}
_SCALARS = dict.fromkeys(("scale", "k_scale", "v_scale", "soft_cap"), "fp32") | {"window": "i32"}
_SINKS: dict[bool, dict[str, str]] = {False: {"sinks": "constexpr"}, True: {"sinks": "*bf16"}}
_STRIDES = dict.fromkeys(("q_stride", "out_stride", "table_stride"), "i32")


def _options(window: bool, sinks: bool) -> str:
    return f"{'-sinks' if sinks else ''}{'-window' if window else ''}"


def _arches(cache: str) -> tuple[int, ...]:
    return ARCHES if cache == "*bf16" else FP8_ARCHES


def _decode(
    dim: int,
    group: int,
    page: int,
    cache: str,
    *,
    sequences: int = 64,
    window: bool = False,
    sinks: bool = False,
) -> Build:
    """`window`: with a soft cap as well, but beside sinks."""
    types = {"q": "*bf16", "k_cache": cache, "v_cache": cache, "out": "*bf16", "partial": "*fp32"}
    types |= {"sums": "*fp32", "tables": "*i32", "contexts": "*i32", **_SCALARS, **_STRIDES}
    types |= dict.fromkeys(("num_kv_heads", "count", "slots"), "i32") | {"one": "fp32", **_SINKS[sinks]}
    return Build(
        f"decode-d{dim}-g{group}-p{page}{_CACHE[cache]}{f'-n{sequences}' if sequences != 64 else ''}{_options(window, sinks)}",
        decode.decode_kernel,
        types,
        {"GROUP": group, "ROWS": max(16, group), "BLOCK_SIZE": page, **_sizes(dim)}
        | {"SEQUENCES": sequences, "HAS_WINDOW": window, "HAS_CAP": window and not sinks},
        ("q", "k_cache", "v_cache", "out", "partial", "q_stride", "out_stride"),
        num_stages=decode.STAGES,
        arches=_arches(cache),
        stated_blocks=3 if dim < 256 else 2,
    )


def _sizes(dim: int) -> dict[str, int]:
    """Of a batch of 64 sequences."""
    tile = decode.tile_keys(dim)
    return {"HEAD_DIM": dim, "DIM": dim, "TILE_N": tile, "LEAST": decode.MIN_KEYS // tile, "SEQUENCES": 64}


def _prefill(
    dim: int, group: int, cache: str, arch: int, *, chunk: int = 2048, page: int = 16, mask: bool = False,
    sinks: bool = False,
) -> Build:  # fmt: skip
    """`mask`: with a sliding window and, but beside sinks, a soft cap."""
    capability, narrow = divmod(arch, 10), cache != "*bf16"
    plan = prefill_plan(capability, chunk * group, dim, narrow=narrow, windowed=mask)
    rows, tile, edge, warps, stages = plan
    types = {"q": "*bf16", "k_cache": cache, "v_cache": cache, "out": "*bf16", "tables": "*i32"}
    types |= {"contexts": "*i32", "query_starts": "*i32", **_SCALARS, **_STRIDES}
    types |= dict.fromkeys(("n", "num_kv_heads", "first_sequence"), "i32") | _SINKS[sinks]
    return Build(
        f"prefill-d{dim}-g{group}-r{rows}{f'-p{page}' if page != 16 else ''}{_CACHE[cache]}{_options(mask, sinks)}",
        prefill.prefill_kernel,
        types,
        {"GROUP": group, "HEAD_DIM": dim, "DIM": dim, "BLOCK_SIZE": page, "ROWS": rows, "TILE_N": tile}
        | {"EDGE_N": edge, "HAS_WINDOW": mask, "HAS_CAP": mask and not sinks},
        ("q", "k_cache", "v_cache", "out", "q_stride", "out_stride"),
        num_warps=warps,
        num_stages=stages,
        most_registers=most_registers(capability, dim, narrow, mask),
        arches=(arch,),
    )


def _merge(dim: int, sinks: bool) -> Build:
    return Build(
        f"decode-merge-d{dim}{_options(False, sinks)}",
        decode.merge_kernel,
        {"out": "*bf16", "partial": "*fp32", "sums": "*fp32", "contexts": "*i32", "v_scale": "fp32"}
        | dict.fromkeys(("window", "out_stride", "num_heads", "count", "slots"), "i32")
        | _SINKS[sinks],
        {"HEADS": 1, "SHARES": 128, "MERGED": decode.MERGED, "HAS_WINDOW": False, **_sizes(dim)},
        ("out", "partial", "sums", "out_stride"),
    )


def _gpt_oss() -> list[Build]:
    """64 heads of 64 share 8, with sinks; every other layer has a window."""
    kinds = [(cache, window) for cache in _CACHE for window in (False, True)]
    return [
        *(_decode(64, 8, 16, cache, window=window, sinks=True) for cache, window in kinds),
        _merge(64, sinks=True),
        *(
            _prefill(64, 8, cache, arch, mask=window, sinks=True)
            for cache, window in kinds
            for arch in _arches(cache)
        ),
    ]


def _attention() -> list[Build]:
    return [
        _decode(128, 4, 16, "*bf16"),
        _decode(128, 8, 16, "*bf16"),
        _decode(64, 4, 16, "*bf16"),
        _decode(256, 4, 16, "*bf16"),
        _decode(128, 16, 64, "*bf16"),
        _decode(128, 1, 32, "*bf16"),
        _decode(64, 8, 64, "*fp8e4nv"),
        _decode(256, 8, 32, "*fp8e4nv"),
        _decode(128, 8, 16, "*bf16", sequences=1024),
        _decode(128, 8, 16, "*bf16", window=True),
        _decode(128, 8, 16, "*fp8e4nv"),
        *(_decode(dim, 8, 16, "*fp8e4nv", window=True) for dim in (64, 128, 256)),
        _merge(128, sinks=False),
        *(_prefill(128, 4, "*bf16", arch) for arch in ARCHES),
        *(_prefill(128, 8, "*bf16", arch) for arch in (90, 100)),
        *(_prefill(64, 4, "*bf16", arch) for arch in ARCHES),
        *(_prefill(256, 4, "*bf16", arch) for arch in ARCHES),
        *(_prefill(128, 4, "*bf16", arch, page=64) for arch in (90, 100)),
        *(_prefill(128, 1, "*bf16", arch, page=32) for arch in ARCHES),
        *(_prefill(dim, 4, "*fp8e4nv", arch) for dim in (64, 256) for arch in FP8_ARCHES),
        *(_prefill(dim, 4, "*bf16", arch, chunk=8) for dim in (64, 128) for arch in ARCHES),
        *(_prefill(dim, 8, "*bf16", arch, mask=True) for dim in (64, 128, 256) for arch in ARCHES),
        *(_prefill(128, 8, "*fp8e4nv", arch) for arch in FP8_ARCHES),
        *(
            _prefill(dim, group, "*fp8e4nv", arch, page=page, mask=True)
            for dim in (64, 128, 256)
            for group, page in ((8, 16), (1, 32), (8, 64))
            for arch in FP8_ARCHES
        ),
        _prefill(64, 8, "*fp8e4nv", 100, chunk=8, mask=True),
        *_gpt_oss(),
    ]


def _rows() -> list[Build]:
    rope = {"qkv": "*bf16", "positions": "*i64", "slots": "*i64", "cos_sin": "*fp32", "k_cache": "*bf16"}
    rope |= {"v_cache": "*bf16", "q_weight": "*bf16", "k_weight": "*bf16"}
    rope |= dict.fromkeys(("k_scale", "v_scale", "eps"), "fp32")
    rope |= dict.fromkeys(("row_stride", "num_heads", "num_kv_heads", "block_size"), "i32")
    return [
        *(
            Build(
                f"rms-norm-{width}{'-residual' if residual else ''}",
                rms_norm.rms_norm_kernel,
                dict.fromkeys(("x", "added", "weight", "out"), "*bf16")
                | {"x_stride": "i32", "width": "i32", "eps": "fp32"},
                {"WIDTH": width, "ADDED": residual},
                ("x", "added", "weight", "out", "x_stride", "width"),
                num_warps=warps_of(width),
            )
            for width, residual in ((4096, False), (8192, True))
        ),
        Build(
            "silu-mul",
            silu_mul.silu_mul_kernel,
            {"gate_up": "*bf16", "out": "*bf16", "width": "i32"},
            {"BLOCK": silu_mul.STRIP},
            ("gate_up", "out", "width"),
        ),
        *(
            Build(
                f"rope-kv-write-d{dim}{suffix}",
                rope_kv_write.rope_kv_write_kernel,
                rope | {"k_cache": cache, "v_cache": cache},
                {"HEAD_DIM": dim, "HALF": dim // 2, "HEADS": rope_kv_write.HEADS, "HAS_NORM": True},
                ("qkv", "k_cache", "v_cache", "cos_sin", "q_weight", "k_weight", "row_stride", "block_size"),
                arches=_arches(cache),
            )
            for dim in (64, 128, 256)
            for cache, suffix in _CACHE.items()
        ),
    ]


def _fp8_products() -> list[Build]:
    types = {"x": "*fp8e4nv", "x_scales": "*fp32", "weight": "*fp8e4nv", "w_scales": "*fp32", "out": "*bf16"}
    types |= {"partial": "*fp32", "arrived": "*i32"}
    types |= dict.fromkeys(("rows", "n", "k", "out_stride"), "i32")
    return [
        Build(
            f"fp8-{kind}-{rows}x{columns}",
            fp8_product.fp8_product_kernel,
            types,
            {"ROWS": rows, "COLUMNS": columns, "BLOCK": fp8_product.BLOCK, "BLOCKED": kind == "blocks"},
            ("x", "weight", "out", "partial", "n", "k", "out_stride"),
            num_warps=warps,
            num_stages=fp8_product.STAGES,
            arches=(arch,),
        )
        for kind in ("rows", "blocks")
        for arch in FP8_ARCHES
        for rows, columns, warps in _fp8_tiles(arch)
    ]


def _narrowed_rows() -> list[Build]:
    """Activations made FP8, after a norm or a gate."""
    types = dict.fromkeys(("x", "added", "weight"), "*bf16")
    types |= {"static_scale": "*fp32", "values": "*fp8e4nv", "scales": "*fp32"}
    types |= {"x_stride": "i32", "width": "i32", "eps": "fp32"}
    limits = {"STATIC": False, "LARGEST": FP8_MAX, "SMALLEST": 1e-12}
    kinds = {
        "norm-4096": (4096, 1, {"ADDED": False, "HAS_NORM": True, "GATED": False}),
        "residual-norm-8192": (8192, 1, {"ADDED": True, "HAS_NORM": True, "GATED": False}),
        "residual-norm-8192-blocks": (8192, 64, {"ADDED": True, "HAS_NORM": True, "GATED": False}),
        "gated-28672": (28672, 1, {"ADDED": False, "HAS_NORM": False, "GATED": True}),
    }
    return [
        *(
            Build(
                f"quantize-rows-{name}",
                quantize_rows.quantize_rows_kernel,
                types,
                {"WIDTH": next_power_of_2(width), "GROUPS": groups, "NUM_GROUPS": groups, **flags, **limits},
                ("x", "added", "weight", "values", "x_stride", "width"),
                num_warps=warps_of(width),
                arches=FP8_ARCHES,
            )
            for name, (width, groups, flags) in kinds.items()
        ),
        *(
            Build(
                f"quantize-rows-gated-53248{'-blocks' if grouped else ''}",
                quantize_rows.quantize_wide_rows_kernel,
                {name: kind for name, kind in types.items() if name not in ("added", "weight", "eps")},
                {"STRIP": quantize_rows.STRIP, "GROUPS": quantize_rows.STRIP // BLOCK if grouped else 1}
                | {"GROUPED": grouped, "GATED": True, **limits},
                ("x", "values", "x_stride", "width"),
                num_warps=16,
                arches=FP8_ARCHES,
            )
            for grouped in (False, True)
        ),
    ]


def _fp8_tiles(arch: int) -> list[tuple[int, int, int]]:
    """Of few and many rows of a wide and a narrow weight."""
    sizes = ((64, 57344), (64, 1024), (128, 57344))
    return list(dict.fromkeys(fp8_product.plan(divmod(arch, 10), *size) for size in sizes))


def _steps() -> list[Build]:
    """Sampling, the preparation of a batch, and the grouping of its choices of experts."""
    names = ("temperatures", "top_ps", "min_ps", "logits")
    draw = dict.fromkeys(names, "*fp32") | {"top_ks": "*i32", "seeds": "*i64", "drawn": "*i64", "out": "*i64"}
    made = {"known": "*i64", "tables": "*i32", "rows": "*i32", "starts": "*i32", "query_starts": "*i32"}
    made |= {"made": "*i64"} | dict.fromkeys(
        ("n", "total", "known_stride", "table_stride", "block_size"), "i32"
    )
    return [
        *(
            Build(
                f"sample-{vocab}",
                sample.sample_kernel,
                draw | {"row_stride": "i32", "vocab": "i32"},
                {"BLOCK": sample.STRIP},
                ("logits",) if vocab % 16 else ("logits", "row_stride", "vocab"),
                num_warps=16,
                most_registers=sample.most_registers(vocab),
            )
            for vocab in (128256, 50257)
        ),
        *(
            Build(
                f"sort-by-expert-{num_experts}-t{tile}",
                grouping.sort_by_expert_kernel,
                {"ids": "*i64", "places": "*i32", "tile_experts": "*i32"}
                | dict.fromkeys(("total", "tiles", "num_experts"), "i32"),
                {"EXPERTS": num_experts, "TILE": tile, "BLOCK": grouping.STRIP},
                ("ids", "places", "tile_experts"),
            )
            for num_experts, tile in ((128, 16), (128, 64), (32, 64))
        ),
        Build(
            "route-128of8",
            routing.route_kernel,
            {"logits": "*bf16", "ids": "*i64", "weights": "*fp32", "row_stride": "i32", "num_experts": "i32"},
            {"EXPERTS": 128, "TOP_K": 8, "CHOICES": 8, "RENORMALISE": True},
            ("logits", "ids", "weights", "row_stride", "num_experts"),
            num_warps=1,
        ),
        Build(
            "prepare-batch",
            prepare_batch.prepare_batch_kernel,
            made,
            {"BLOCK": prepare_batch.STRIP},
            ("known", "tables", "made", "block_size"),
            num_warps=2,
        ),
    ]


def builds() -> list[Build]:
    """Every build of the report, attention first."""
    return [
        *_attention(),
        *_rows(),
        *_fp8_products(),
        *_narrowed_rows(),
        *experts(),
        *mxfp4_experts(),
        *_steps(),
    ]

"""Of the products of a mixture of experts: in 16 bits, FP8 and MXFP4."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from ..experts import triton as grouped
from ..experts.fp8_grouped import triton as fp8_grouped
from ..experts.mxfp4 import triton as mxfp4
from ..experts.mxfp4.packing import FORMS
from ..launch import has_warpgroups
from .expert_layer import build_name
from .floors import H100_SMS
from .sass import ARCHES, FP8_ARCHES, Build


def experts() -> list[Build]:
    """Of many and few places an expert."""
    types = {"x": "*bf16", "weight": "*bf16", "out": "*bf16", "places": "*i32", "tile_experts": "*i32"}
    types |= {"row_weights": "*fp32", "num_places": "i32", "n": "i32", "k": "i32"}
    narrow = types | {"x": "*fp8e4nv", "weight": "*fp8e4nv", "x_scales": "*fp32", "w_scales": "*fp32"}
    flags = {"DIVISOR": 8, "WEIGHTED": False, "EVEN": True}
    aligned = ("x", "weight", "out", "places", "n", "k")
    made: list[Build] = []
    for rows, columns in ((64, 128), (16, 64)):
        sizes = {"ROWS": rows, "COLUMNS": columns, **flags}
        made.append(
            Build(
                f"experts-{rows}x{columns}",
                grouped.grouped_product_kernel,
                types,
                {"DEPTH": grouped.DEPTH, **sizes},
                aligned,
                num_stages=4,
                stated_blocks=2 if rows == 64 else 6,
            )
        )
        made += [
            Build(
                f"experts-{rows}x{columns}-fp8{'-blocks' if blocked else ''}",
                fp8_grouped.fp8_grouped_kernel,
                narrow,
                {"BLOCK": fp8_grouped.BLOCK, "BLOCKED": blocked, **sizes},
                aligned,
                num_stages=fp8_grouped.STAGES,
                arches=FP8_ARCHES,
                stated_blocks=2 if rows == 64 else 6,
            )
            for blocked in (False, True)
        ]
    return made


def mxfp4_experts() -> list[Build]:
    """Both products of gpt-oss, whose experts are 2,880 wide: of few, some and many places an expert."""
    types = {
        "x": "*bf16",
        "blocks": "*u8",
        "scales": "*i32",
        "bias": "*bf16",
        "out": "*bf16",
        "places": "*i32",
    }
    types |= {"tile_experts": "*i32", "row_weights": "*fp32", "num_places": "i32", "n": "i32", "k": "i32"}
    types |= dict.fromkeys(("factor", "limit", "alpha"), "fp32")
    sizes = itertools.product(((16, 4), (16, 32), (64, 64), (128, 96)), (5760, 2880))
    made = dict[str, Build]()
    for arch, ((tokens, tiles), n) in itertools.product(ARCHES, sizes):
        capability, gated = divmod(arch, 10), n == 5760
        if tokens > 64 and not has_warpgroups(capability):
            continue
        rows, warps, stages = mxfp4.plan(tokens, tiles, n, H100_SMS, capability)
        flags = {"DIVISOR": 4 if gated else 1, "GATED": gated, "WEIGHTED": not gated, "EVEN": True}
        name = build_name(tokens, rows, stages, gated=gated)
        build = Build(
            name,
            mxfp4.mxfp4_grouped_kernel,
            types,
            {"TOKENS": tokens, "ROWS": rows, **flags, **mxfp4.constants(FORMS[torch.bfloat16])},
            ("x", "blocks", "scales", "bias", "out", "places", "tile_experts", "row_weights", "n", "k"),
            num_warps=warps,
            num_stages=stages,
            arches=(),
            stated_blocks=2,
        )
        arches = dict.fromkeys((*made.get(name, build).arches, arch))  # two sizes may have one plan
        made[name] = replace(build, arches=tuple(arches))
    return list(made.values())

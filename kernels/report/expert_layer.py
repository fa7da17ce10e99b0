"""The experts of a gpt-oss layer on an H100: what their products in MXFP4 move, multiply and issue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..experts.grouping import tiles_of
from ..experts.mxfp4 import triton as mxfp4
from ..experts.mxfp4.packing import UNIT_COLUMNS
from .floors import (
    H100_BF16_FLOPS,
    H100_BYTES_PER_S,
    H100_CYCLES_PER_S,
    H100_SMS,
    MXFP4_BYTES,
    SCHEDULERS,
)

HOPPER = (9, 0)
HIDDEN, INNER, TOP_K = 2880, 2880, 4
MODELS = {"20b": 32, "120b": 128}  # experts of a layer
DECODES, PROMPT = (1, 8, 64), 2048


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """One product over the tokens of a step, each of which chooses TOP_K experts, any as likely as another."""

    model: str
    tokens: int
    name: str
    build: str  # of the report
    experts: float  # that some token chose
    programs: float  # that have work
    turns: int  # of a program's loop
    bytes_moved: float
    tile_flops: float  # of whole tiles, the places that nobody has among them

    @property
    def bytes_us(self) -> float:
        return self.bytes_moved / H100_BYTES_PER_S * 1e6

    @property
    def flops_us(self) -> float:
        return self.tile_flops / H100_BF16_FLOPS * 1e6

    def issue_us(self, figures: Mapping[str, Any]) -> float:
        """Of the SM with the most programs."""
        turn = figures["loop_instructions"] * figures["warps"] / SCHEDULERS
        return math.ceil(self.programs / H100_SMS) * self.turns * turn / H100_CYCLES_PER_S * 1e6

    def bound(self, figures: Mapping[str, Any]) -> str:
        """What takes longest."""
        times = {"bytes": self.bytes_us, "FLOPs": self.flops_us, "issue": self.issue_us(figures)}
        return max(times, key=lambda what: times[what])


def chosen(tokens: int, num_experts: int, tile: int) -> tuple[float, float]:
    """(experts that some token chose, tiles of their places): means, where an expert's count is binomial."""
    p = TOP_K / num_experts
    odds = [(1 - p) ** tokens]
    for i in range(tokens):
        odds.append(odds[-1] * (tokens - i) / (i + 1) * p / (1 - p))
    return num_experts * (1 - odds[0]), num_experts * sum(
        share * math.ceil(i / tile) for i, share in enumerate(odds)
    )


def packed_products() -> list[PackedProduct]:
    """Gates and ups, and downs, of decodes and of a prompt."""
    made = []
    for (model, num_experts), tokens in ((m, t) for m in MODELS.items() for t in (*DECODES, PROMPT)):
        places = tokens * TOP_K
        tile = mxfp4.tile_of(places, num_experts, HOPPER)
        experts, tiles = chosen(tokens, num_experts, tile)
        for name, n, k in (("gate, up", 2 * INNER, HIDDEN), ("down", HIDDEN, INNER)):
            gated = name != "down"
            rows, _, stages = mxfp4.plan(tile, tiles_of(places, num_experts, tile), n, H100_SMS, HOPPER)
            passed = 2 * (tokens * k + places * n // 2 if gated else places * (k + n))
            made.append(
                PackedProduct(
                    model,
                    tokens,
                    name,
                    build_name(tile, rows, stages, gated=gated),
                    experts,
                    tiles * -(-n // rows),
                    -(-k // UNIT_COLUMNS),
                    experts * n * (k * MXFP4_BYTES + 2) + passed,
                    2 * tiles * tile * n * k,
                )
            )
    return made


def build_name(tile: int, rows: int, stages: int, *, gated: bool) -> str:
    """As the report calls the build of a product."""
    return f"experts-mxfp4-{tile}x{rows}{'-gated' if gated else ''}-s{stages}"


def render_experts(builds: Sequence[Mapping[str, Any]]) -> list[str]:
    """As Markdown."""
    figures = {b["name"]: b for b in builds if b["arch"] == 90}
    lines = [
        "",
        "## A layer of gpt-oss's experts",
        "",
        "Products in MXFP4 of a step on an H100: what it reads and writes at 3.35 TB/s, whole tiles of places at 989",
        "TFLOP/s, and what the SM with the most programs takes to issue its main loops. Each token chooses 4 of a layer's",
        "experts at random; `experts` and `programs` are those that have work, on average.",
        "",
        "| gpt-oss | tokens | product | build | experts | programs | MB | us of bytes | us of FLOPs | us to issue | bound by |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    late = []
    for p in packed_products():
        build = figures[p.build]
        issue, bound = p.issue_us(build), p.bound(build)
        lines.append(
            f"| {p.model} | {p.tokens:,} | {p.name} | {p.build.removeprefix('experts-mxfp4-')} | {p.experts:.1f} | "
            f"{p.programs:,.0f} | {p.bytes_moved / 1e6:,.1f} | {p.bytes_us:,.1f} | {p.flops_us:,.1f} | {issue:,.1f} | {bound} |"
        )
        if bound == "issue":
            late.append(issue / max(p.bytes_us, p.flops_us))
    if late:
        lines += [
            "",
            f"Where issue binds it takes up to {max(late):.2f} times what bytes or FLOPs take. Of one token, 180 programs of",
            "gates and ups share 132 SMs; programs of half the rows issue more for a byte and end no sooner.",
        ]
    return lines

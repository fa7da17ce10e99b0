"""A decode step of one layer of a 70B model, kernel by kernel: what each moves, and how it fills an H100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..fp8 import BLOCK
from ..linear.fp8_product import triton as fp8_product
from ..paged_attention import decode
from ..rope_kv_write import triton as rope_kv_write
from .floors import H100_BYTES_PER_S, H100_SMS

COPY_SHARE = 0.9  # of the datasheet's bandwidth that a copy is assumed to reach; a GPU run measures it
START_S = 2e-6  # between two kernels of a graph: one drains, the next begins and waits for its first bytes
ALLOWED = 1.25  # times the bytes over a copy's bandwidth that a whole step may take
HOPPER = (9, 0)

HIDDEN, INNER, HEADS, KV_HEADS, DIM = 8192, 28672, 64, 8, 128


@dataclass(frozen=True, slots=True)
class LayerOp:
    """One kernel of a layer."""

    name: str
    build: str  # of the report, for how many programs an SM holds
    programs: int  # that have work
    needed_bytes: float  # weights and KV cache: what no implementation can avoid
    passed_bytes: float = 0.0  # activations, which mostly stay in the second-level cache

    def waves(self, blocks_per_sm: int) -> float:
        """Rounds of programs over all SMs."""
        return self.programs / (H100_SMS * blocks_per_sm)

    @property
    def copy_s(self) -> float:
        """Of its bytes at a copy's speed."""
        return (self.needed_bytes + self.passed_bytes) / (H100_BYTES_PER_S * COPY_SHARE)


def product(name: str, rows: int, out_features: int, in_features: int) -> LayerOp:
    """An FP8 product with a scale a channel, as `fp8_product` cuts it."""
    tile, columns, _ = fp8_product.plan(HOPPER, rows, out_features)
    tiles = -(-rows // tile) * -(-out_features // columns)
    shares = fp8_product.shares_of(tiles, in_features // BLOCK, H100_SMS)
    weight = out_features * (in_features + 4)
    passed = rows * (in_features + 2 * out_features) + 2 * 4 * rows * out_features * (
        shares if shares > 1 else 0
    )
    return LayerOp(name, f"fp8-rows-{tile}x{columns}", tiles * shares, weight, passed)


def attention(rows: int, context: int) -> LayerOp:
    """Decodes of one length, shared out as `decode.share_out` does."""
    slots = -(-decode.PROGRAMS_PER_SM * H100_SMS // KV_HEADS)
    tile = decode.tile_keys(DIM)
    tiles = -(-context // tile)
    share = max(-(-rows * tiles // slots), decode.MIN_KEYS // tile)
    name = f"decode-d{DIM}-g{HEADS // KV_HEADS}-p16"
    kv = 2 * rows * context * KV_HEADS * DIM * 2
    return LayerOp("attention", name, rows * -(-tiles // share) * KV_HEADS, kv, 4 * rows * HEADS * DIM)


def layer(rows: int = 64, context: int = 2048) -> list[LayerOp]:
    """In the order in which they run; a KV cache of 16 bits."""
    heads, norm = HEADS + 2 * KV_HEADS, "quantize-rows-residual-norm-8192"
    return [
        LayerOp("residual, norm, quantise", norm, rows, 0, 7 * rows * HIDDEN),
        product("q, k, v", rows, heads * DIM, HIDDEN),
        LayerOp(
            "rotary embedding, KV write",
            "rope-kv-write-d128",
            rows * -(-heads // rope_kv_write.HEADS),
            0,
            4 * rows * heads * DIM,
        ),
        attention(rows, context),
        LayerOp("merge (one share: returns)", "decode-merge-d128", rows * KV_HEADS, 0),
        LayerOp("quantise", norm, rows, 0, 3 * rows * HEADS * DIM),
        product("output", rows, HIDDEN, HEADS * DIM),
        LayerOp("residual, norm, quantise", norm, rows, 0, 7 * rows * HIDDEN),
        product("gate, up", rows, 2 * INNER, HIDDEN),
        LayerOp("gate, quantise", "quantize-rows-gated-28672", rows, 0, 5 * rows * INNER),
        product("down", rows, HIDDEN, INNER),
    ]


def needed_share(ops: Sequence[LayerOp]) -> float:
    """Of a copy's bandwidth that products and attention must reach together, so that the layer takes ALLOWED
    times its needed bytes over that bandwidth, when every kernel costs its start.
    """
    needed_s = sum(op.needed_bytes for op in ops) / (H100_BYTES_PER_S * COPY_SHARE)
    small_s = sum(op.copy_s for op in ops if not op.needed_bytes)
    large_s = sum(op.copy_s for op in ops if op.needed_bytes)
    return large_s / (ALLOWED * needed_s - small_s - START_S * len(ops))


def render_layer(builds: Sequence[Mapping[str, Any]]) -> list[str]:
    """As Markdown."""
    blocks = {b["name"]: b["blocks_per_sm"] for b in builds if b["arch"] == 90}
    ops = layer()
    lines = [
        "",
        "## A decode step of one 70B layer",
        "",
        "64 sequences of 2,048 tokens, weights in FP8, KV cache in 16 bits, on an H100. `programs` are those with work,",
        f"`waves` their rounds over {H100_SMS} SMs; `MB` is weights and KV cache, `passed` activations and partial sums;",
        f"`us` their time at {COPY_SHARE:.0%} of 3.35 TB/s, which a copy is assumed to reach, and {START_S * 1e6:.0f} us for a start.",
        "",
        "| kernel | programs | waves | MB | passed MB | us |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for op in ops:
        lines.append(
            f"| {op.name} | {op.programs:,} | {op.waves(blocks[op.build]):.2f} | {op.needed_bytes / 1e6:,.1f} | "
            f"{op.passed_bytes / 1e6:,.1f} | {(op.copy_s + START_S) * 1e6:,.1f} |"
        )
    needed = sum(op.needed_bytes for op in ops)
    total_us = sum(op.copy_s + START_S for op in ops) * 1e6
    floor_us = needed / (H100_BYTES_PER_S * COPY_SHARE) * 1e6
    passed = sum(op.passed_bytes for op in ops)
    lines += [
        f"| all | | | {needed / 1e6:,.1f} | {passed / 1e6:,.1f} | {total_us:,.1f} |",
        "",
        f"The bytes alone take {floor_us:,.0f} us, {ALLOWED} times that is {ALLOWED * floor_us:,.0f}: products and attention must reach",
        f"{needed_share(ops):.0%} of a copy's bandwidth together.",
    ]
    return lines

"""The kernel report: current, and what it must show of the machine code."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from camshaft.kernels.linear.fp8_product.triton import plan as product_plan
from camshaft.kernels.paged_attention.triton import prefill_plan
from camshaft.kernels.report import __main__ as report
from camshaft.kernels.report.expert_layer import DECODES, MODELS, chosen, packed_products
from camshaft.kernels.report.floors import (
    H100_BYTES_PER_S,
    H100_SMS,
    MXFP4_BYTES,
    decode_attention,
    experts,
    gemm,
    prefill_attention,
)
from camshaft.kernels.report.layer import COPY_SHARE, layer, needed_share
from camshaft.kernels.report.sass import local_in_loops, main_loop, matrix_instructions, occupancy

DATA: dict[str, Any] = json.loads(report.DATA.read_text())
BUILDS: list[dict[str, Any]] = DATA["builds"]
PRODUCTS = ("prefill", "fp8-blocks", "fp8-rows", "experts-64", "experts-mxfp4")


def test_the_report_is_of_these_sources() -> None:
    assert DATA["sources"] == report.source_hash(), f"kernels changed: run {report.COMMAND}"
    assert report.PAGE.read_text() == report.render(DATA)


def test_no_kernel_spills_registers_or_touches_local_memory_in_a_loop() -> None:
    assert len(BUILDS) > 50
    spilled = [(b["name"], b["arch"]) for b in BUILDS if b["stack_bytes"] or b["local_in_loops"]]
    assert not spilled


def test_attention_is_compiled_for_every_head_size_cache_and_mask() -> None:
    """A mask costs registers, an FP8 cache does, and a head of 256: all of them together cost the most."""
    found = set()
    for build in BUILDS:
        room, dim, *rest = [*build["name"].split("-"), ""]
        found.add((room, build["arch"], dim, "fp8" in rest, "window" in rest))
    kinds = itertools.product((89, 90, 100), ("d64", "d128", "d256"), (False, True), (False, True))
    for arch, dim, fp8, masked in kinds:
        assert ("prefill", arch, dim, fp8, masked) in found
        assert ("decode", arch, dim, fp8, masked) in found or (masked and not fp8)


@pytest.mark.parametrize(("arch", "instruction"), [(80, "HMMA"), (89, "MMA"), (90, "GMMA"), (100, "UTC")])
def test_products_use_the_matrix_instructions_of_their_architecture(arch: int, instruction: str) -> None:
    """Warpgroup instructions on Hopper (HGMMA, QGMMA), those of tensor memory on Blackwell of data centres."""
    found = [b for b in BUILDS if b["arch"] == arch and b["name"].startswith(PRODUCTS)]
    assert found
    for build in found:
        assert any(instruction in name for name in build["matrix"]), build


def test_attention_and_products_load_sixteen_bytes_at_a_time() -> None:
    for build in BUILDS:
        if build["name"].startswith((*PRODUCTS, "decode-d")):
            assert build["wide_loads"] >= 8, build


def test_packed_weights_become_numbers_in_registers() -> None:
    """On Hopper shared memory has room for what is loaded, stage by stage, and none for a tile of unpacked weights."""
    found = [b for b in BUILDS if b["arch"] == 90 and b["name"].startswith("experts-mxfp4")]
    assert len(found) == 8
    for build in found:
        tokens, rows, stages = map(int, re.findall(r"-(\d+)x(\d+).*-s(\d+)", build["name"])[0])
        loaded = stages * (rows * (32 + 2) + tokens * 64 * 2)
        assert loaded - rows * 64 * 2 < build["shared_bytes"] <= loaded, build


def test_warpgroup_instructions_are_not_serialised() -> None:
    """Where the assembler finds other instructions between them that touch their registers, it waits for each."""
    found = [b for b in BUILDS if b["arch"] == 90 and any("GMMA" in name for name in b["matrix"])]
    assert len(found) > 20
    assert not [(b["name"], b["loop_waits"]) for b in found if b["loop_waits"] > 2]


def test_an_sm_holds_as_many_blocks_as_the_design_states() -> None:
    for build in BUILDS:
        if build["arch"] >= 90:
            assert build["blocks_per_sm"] >= build["stated_blocks"], build


def test_main_loops_leave_memory_and_tensor_cores_their_full_speed() -> None:
    """On paper: instructions issue faster than bytes or products take, and enough bytes are on their way."""
    turns = {turn["build"]: turn for turn in DATA["turns"]}
    assert {"decode-d128-g8-p16", "decode-d128-g8-p16-fp8", "prefill-d128-g8-r128"} <= set(turns)
    for name, turn in turns.items():
        # Heads of 64 have an exponential for each 256 operations: it takes as long as they do.
        assert turn["issue_share"] < (1.1 if name.startswith("prefill-d64") else 1), turn
        assert turn["what"] == "FLOPs" or turn["in_flight_bytes"] > 2 * DATA["needed_in_flight_bytes"], turn


def test_copies_are_on_their_way_while_a_program_works() -> None:
    """A loop that waits for all its copies at the head of a turn has nothing left that hides their latency."""
    pipelined = [
        b for b in BUILDS if b["name"].startswith((*PRODUCTS, "decode-d")) and b["blocks_per_sm"] == 1
    ]
    assert len(pipelined) > 20
    waiting = [
        (b["name"], b["arch"]) for b in pipelined if b["ahead"] < 2
    ]  # keys and values are a group each
    # Beside the queries, 99 kB hold no further tile of heads of 256.
    assert not [name for name, arch in waiting if arch != 89 or "d256" not in name]


def test_rows_are_read_sixteen_bytes_at_a_time() -> None:
    rows = ("rms-norm", "silu-mul", "quantize-rows", "rope-kv-write-d128", "sample", "decode-merge")
    found = [b for b in BUILDS if b["name"].startswith(rows)]
    assert len(found) > 20
    assert not [
        b for b in found if b["wide_loads"] < 2 and b["name"] != "sample-50257"
    ]  # no multiple of four


def test_every_kernel_of_the_sources_is_covered() -> None:
    written = {
        name
        for file in report.KERNELS.rglob("*.py")
        for name in re.findall(r"^@triton\.jit.*\ndef (\w+_kernel)\(", file.read_text(), re.MULTILINE)
    }
    assert len(written) >= 14
    assert {b["function"] for b in BUILDS} == written
    for name in written:
        arches = {b["arch"] for b in BUILDS if b["function"] == name}
        assert {89, 90, 100} <= arches, name
        assert 80 in arches or name.startswith(("fp8_", "quantize_")), name


def test_every_architecture_is_covered() -> None:
    fp8 = [b for b in BUILDS if "fp8" in b["name"] or "quantize" in b["name"]]
    assert {b["arch"] for b in BUILDS} == {80, 89, 90, 100}
    assert {b["arch"] for b in fp8} == {89, 90, 100}  # Triton has no e4m3 below


LARGEST_SHARED = {80: 163, 89: 99, 90: 227, 100: 227}  # KiB of a program (CUDA programming guide, 20.1)


def test_shared_memory_is_within_what_a_device_has() -> None:
    """Ada has as little as an A10 (8.6) and Blackwell of desktops (12.0), whose tiles are the same."""
    for build in BUILDS:
        assert build["shared_bytes"] <= LARGEST_SHARED[build["arch"]] << 10, build
    flags = [
        {"wide": wide, "narrow": narrow, "windowed": windowed}
        for wide, narrow, windowed in itertools.product((False, True), repeat=3)
    ]
    for longest, dim, kind in itertools.product((64, 65), (64, 128, 256), flags):
        plans = {prefill_plan(capability, longest, dim, **kind) for capability in ((8, 6), (8, 9), (12, 0))}
        assert len(plans) == 1
    assert len({product_plan(capability, 64, 57344) for capability in ((8, 9), (12, 0))}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decode-d128-g8-p16", "prefill-d128-g8-r128", "experts-mxfp4-16x256-s6"])
def test_compiling_again_gives_the_reported_figures(name: str) -> None:
    """In a process of its own: what is compiled must not be what an interpreter decorated."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "camshaft.kernels.report", "--build", name]
    run = subprocess.run(
        command, env={**environment, "PYTHONPATH": ".pkg"}, cwd=report.KERNELS.parent, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    import triton

    for made in json.loads(run.stdout):
        assert made["stack_bytes"] == made["local_in_loops"] == 0
        if triton.__version__ == DATA["triton"]:
            assert made in BUILDS


def test_local_memory_is_counted_inside_loops_only() -> None:
    code = "  STL [R1], R2 ;\n.L_x_1:\n LDL R3, [R1] ;\n @P0 BRA `(.L_x_1) ;\n LDL R4, [R1] ;\n.L_x_2:\n BRA `(.L_x_2) ;\n"
    assert local_in_loops(code) == 1


def test_the_main_loop_is_the_shortest_that_multiplies() -> None:
    tail = ".L_x_1:\n HGMMA.64x64x16 R24 ;\n FSEL R1 ;\n FSEL R2 ;\n FSEL R3 ;\n FSEL R4 ;\n @P0 BRA `(.L_x_1) ;\n"
    main = ".L_x_2:\n DEPBAR.LE SB0, 0x3 ;\n HGMMA.64x64x16 R24 ;\n WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n MUFU.EX2 R1 ;\n BRA `(.L_x_2) ;\n"
    search = ".L_x_3:\n BRA `(.L_x_3) ;\n"
    around = f".L_x_4:\n{tail}{main} BRA `(.L_x_4) ;\n"
    wide = ".L_x_5:\n HGMMA R24 ;\n HGMMA R32 ;\n FADD R1 ;\n BRA `(.L_x_5) ;\n"
    assert main_loop(search + tail + main) == (5, 3, 1, 1)
    assert main_loop(search + around) == (5, 3, 1, 1)  # an outer loop is none
    assert main_loop(tail + main + wide) == (4, 0, 0, 0)  # the main loop's tile is larger than the tail's
    assert main_loop(search) == (0, 0, 0, 0)


def test_matrix_instructions_are_told_by_name() -> None:
    code = "HGMMA.64x64x16.F32.BF16 R24 ;\n HMMA.16816 R1 ;\n HMMA.16816 R2 ;\n MMA=="
    assert matrix_instructions(code) == {"HGMMA": 1, "HMMA": 2}


@pytest.mark.parametrize(
    ("arch", "warps", "registers", "shared", "blocks"),
    [
        (90, 4, 128, 0, 4),
        (90, 4, 32, 0, 16),
        (90, 1, 16, 0, 32),
        (90, 8, 64, 100_000, 2),
        (80, 8, 64, 100_000, 1),
        (89, 8, 64, 40_000, 2),
        (89, 8, 32, 0, 6),
    ],
)
def test_occupancy(arch: int, warps: int, registers: int, shared: int, blocks: int) -> None:
    assert occupancy(arch, warps, registers, shared) == blocks


def test_a_step_of_a_large_layer_fits_its_bytes_on_paper() -> None:
    """Every read of weights and KV cache fills the SMs, and starts leave a share of the bandwidth within reach."""
    steps = layer()
    blocks = {b["name"]: b["blocks_per_sm"] for b in BUILDS if b["arch"] == 90}
    assert {step.build for step in steps} <= set(blocks)
    large = [step for step in steps if step.needed_bytes]
    assert len(large) == 5
    # 70B: 855 MB of weights a layer (68.45 billion over 80 layers), 537 MB of KV cache.
    assert sum(step.needed_bytes for step in large) == pytest.approx(68.45e9 / 80 + 2**29, rel=0.01)
    for step in large:
        assert step.programs >= 0.9 * 132, step
        assert step.passed_bytes < 0.4 * step.needed_bytes, step
    assert needed_share(steps) < 0.9


def test_a_layer_of_packed_experts_is_near_its_bytes_on_paper() -> None:
    """A decode's products are bound by bytes, of one token at a copy's speed, and ask for enough of them ahead."""
    figures = {b["name"]: b for b in BUILDS if b["arch"] == 90}
    products = packed_products()
    assert len(products) == len(MODELS) * (len(DECODES) + 1) * 2
    for each in products:
        build = figures[each.build]
        slowest = max(each.bytes_us, each.flops_us)
        assert each.issue_us(build) * (COPY_SHARE if each.tokens in (1, 2048) else 1) < slowest, each
        assert each.tokens == 2048 or each.bytes_us > each.flops_us, each
        rows, stages = map(int, re.findall(r"x(\d+).*-s(\d+)", each.build)[0])
        if each.tokens in DECODES:
            held = min(each.programs, H100_SMS * build["blocks_per_sm"])
            assert held * (stages - 2) * rows * 34 > H100_SMS * DATA["needed_in_flight_bytes"], each
    assert f"| 120b | {DECODES[-1]} |" in report.PAGE.read_text()


@pytest.mark.parametrize(
    ("tokens", "experts", "tile"), [(1, 32, 16), (8, 32, 16), (64, 128, 16), (700, 32, 64)]
)
def test_choices_of_experts_are_counted_as_they_fall(tokens: int, experts: int, tile: int) -> None:
    """Against draws of as many tokens."""
    rng = np.random.default_rng(0)
    drawn = [
        np.bincount(rng.random((tokens, experts)).argpartition(4)[:, :4].ravel(), minlength=experts)
        for _ in range(300)
    ]
    found = np.mean([((counts > 0).sum(), (-(-counts // tile)).sum()) for counts in drawn], axis=0)
    assert chosen(tokens, experts, tile) == pytest.approx(found, rel=0.02)


def test_floors_on_paper() -> None:
    decode = decode_attention(64, 8192, 64, 8, 128, 2)
    # 64 sequences of 8,192 tokens, 8 heads of 128, K and V of 2 bytes: 2 GiB of cache.
    assert decode.bytes_moved == pytest.approx(2**31, rel=0.01)
    assert decode.bound == "bytes"
    assert decode.micros == pytest.approx(2**31 / H100_BYTES_PER_S * 1e6, rel=0.01)
    whole, tail = prefill_attention(4096, 4096, 32, 8, 128), prefill_attention(1, 4096, 32, 8, 128)
    assert whole.bound == "FLOPs"
    assert whole.flops == pytest.approx(tail.flops * 2048, rel=0.01)
    # gpt-oss-20b, a step of 64: 32 experts of three times 2,880 x 2,880 in 4.25 bits.
    packed = experts(256, 32, 2880, 2880, MXFP4_BYTES)
    assert packed.bytes_moved == pytest.approx(32 * 3 * 2880**2 * 4.25 / 8, rel=0.02)
    assert gemm(64, 8192, 8192, 1).bytes_moved < gemm(64, 8192, 8192, 2).bytes_moved

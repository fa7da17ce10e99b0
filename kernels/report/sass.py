"""Compiles one kernel ahead of time and reads its machine code with the tools that Triton ships."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
REGISTERS_PER_SM = 65536
# Shared memory of an SM in bytes, of which every block takes 1,024 for itself, warps, blocks (CUDA programming guide,
# 20.1). The tiles of 89 (Ada: L4, L40S, RTX 4090) are those of 86 (A10, RTX 3090) and of 120 as well.
ROOM = {80: (167_936, 64, 32), 89: (102_400, 48, 24), 90: (233_472, 64, 32), 100: (233_472, 64, 32)}
ARCHES = tuple(ROOM)
FP8_ARCHES = tuple(arch for arch in ARCHES if arch >= 89)  # Triton has no e4m3 below


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel with its argument types, compile-time constants and options."""

    name: str
    kernel: Any
    types: dict[str, str]  # "*bf16", "i32", "fp32"; "constexpr" where an argument is None
    constants: dict[str, Any]
    aligned: tuple[str, ...] = ()  # arguments that are multiples of 16, as the launcher would find them
    num_warps: int = 4
    num_stages: int = 3
    most_registers: int | None = None  # of a thread; None leaves it to the assembler
    arches: tuple[int, ...] = ARCHES
    stated_blocks: int = 1  # that the design wants on an SM of Hopper or later, at least


@dataclass(frozen=True, slots=True)
class Figures:
    """What the machine code of one build shows."""

    name: str
    function: str
    arch: int
    warps: int
    registers: int
    stack_bytes: int  # spills and arrays in local memory
    shared_bytes: int
    blocks_per_sm: int
    local_in_loops: int  # LDL and STL between a backward branch and its target
    matrix: dict[str, int] = field(default_factory=dict)  # matrix instructions by name
    wide_loads: int = 0  # 16 bytes a thread, to registers or to shared memory
    narrow_loads: int = 0
    loop_instructions: int = 0  # of one turn of the main loop
    ahead: int = 0  # groups of asynchronous copies on their way while a turn works; 0: it waits for all
    loop_exponentials: int = 0  # instructions of a turn for the special-function units
    loop_waits: int = (
        0  # of a turn for all warpgroup matrix instructions under way; serialised ones wait one by one
    )
    stated_blocks: int = 1

    def record(self) -> dict[str, Any]:
        return asdict(self)


def compile_build(build: Build, arch: int) -> Figures:
    """Figures of a build for compute capability `arch` (90 is Hopper). Raises what the compiler raises."""
    names = build.kernel.arg_names
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in build.aligned}
    signature = {name: build.types.get(name, "constexpr") for name in names}
    absent = {name: None for name, kind in build.types.items() if kind == "constexpr"}
    source = ASTSource(build.kernel, signature, build.constants | absent, attributes)
    options = {"num_warps": build.num_warps, "num_stages": build.num_stages, "maxnreg": build.most_registers}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        code = _tool("nvdisasm", "-c", file.name)
        usage = _tool("cuobjdump", "-res-usage", file.name)
    registers, stack = (int(_found(rf"{word}:(\d+)", usage)) for word in ("REG", "STACK"))
    shared = int(compiled.metadata.shared)
    # A kernel compiled to use warp specialisation or wgmma may be launched with more warps than asked for.
    warps = int(compiled.metadata.num_warps)
    return Figures(
        build.name, build.kernel.__name__, arch, warps, registers, stack, shared, occupancy(arch, warps, registers, shared),
        local_in_loops(code), matrix_instructions(code), *_loads(code), *main_loop(code), build.stated_blocks,
    )  # fmt: skip


def occupancy(arch: int, warps: int, registers: int, shared_bytes: int) -> int:
    """Blocks that fit an SM: registers come to a warp in steps of 256, shared memory with 1 kB on top."""
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = REGISTERS_PER_SM // per_warp // warps
    shared_of_sm, warps_of_sm, blocks_of_sm = ROOM[arch]
    return min(by_registers, shared_of_sm // (shared_bytes + 1024), warps_of_sm // warps, blocks_of_sm)


def local_in_loops(code: str) -> int:
    """Local-memory instructions inside any loop of an nvdisasm listing."""
    lines = code.splitlines()
    inside = {i for loop in _loops(lines) for i in loop}
    return sum(bool(re.search(r"\b(LDL|STL)\b", lines[i])) for i in inside)


class MainLoop(NamedTuple):
    """Of one turn of the loop that multiplies most matrices."""

    instructions: int = 0
    ahead: int = 0  # groups of copies that it leaves on their way when it waits for its own
    exponentials: int = 0
    waits: int = 0  # for all its warpgroup matrix instructions


def main_loop(code: str) -> MainLoop:
    """Of several loops alike the shortest (the others have masks); zeros without one."""
    lines = code.splitlines()
    found: list[range] = []
    for loop in sorted(_loops(lines), key=len):
        apart = all(loop.stop <= other.start or other.stop <= loop.start for other in found)
        if apart and _count(lines, loop, _MATRIX):
            found.append(loop)
    if not found:
        return MainLoop()
    loop = max(found, key=lambda loop: (_count(lines, loop, _MATRIX), -len(loop)))
    waits = [int(left, 16) for i in loop for left in re.findall(r"\bDEPBAR\.LE SB0, (0x\w+)", lines[i])]
    counts = (
        _count(lines, loop, pattern) for pattern in (r"\bMUFU\b", r"\bWARPGROUP\.DEPBAR\.LE gsb0, 0x0\b")
    )
    return MainLoop(_count(lines, loop, r";\s*$"), min(waits, default=0), *counts)


_MATRIX = r"\b[A-Z]+MMA\b"


def _count(lines: list[str], loop: range, pattern: str) -> int:
    return sum(bool(re.search(pattern, lines[i])) for i in loop)


def _loops(lines: list[str]) -> list[range]:
    """Lines from a label to a branch back to it."""
    labels = {line.strip()[:-1]: i for i, line in enumerate(lines) if re.match(r"\s*\.L_x_\d+:", line)}
    found: list[range] = []
    for i, line in enumerate(lines):
        target = re.search(r"\bBRA(?:\.\S+)?\s.*`\((\.L_x_\d+)\)", line)
        if target and labels.get(target[1], i) < i:
            found.append(range(labels[target[1]], i + 1))
    return found


def matrix_instructions(code: str) -> dict[str, int]:
    """How often each matrix instruction stands in the code: HMMA, HGMMA (Hopper), UTCHMMA (Blackwell), ..."""
    found: dict[str, int] = {}
    for name in re.findall(r"\b([A-Z]+MMA)\b", code):
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def _loads(code: str) -> tuple[int, int]:
    loads = re.findall(r"\b(?:LDG|LDGSTS)\.E(\S*)", code)
    wide = sum(".128" in suffix for suffix in loads)
    return wide, len(loads) - wide


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"no {pattern} in the tool's output: {text[:200]}")
    return match[1]

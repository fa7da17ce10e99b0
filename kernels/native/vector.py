"""Vector code written as LLVM instructions: a register-blocked product, a transpose, raw memory.

Memory is passed as int64 addresses. Sizes follow the vector registers of the host: 16 lanes where
AVX-512 is there, else 8 (AVX2; other machines split them). Every product here adds its terms in
ascending order with one fused multiply-add each, so a result does not depend on how work was cut.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.extending import intrinsic

from .jit import jit


def _has_avx512() -> bool:
    """Of the processor that Numba compiles for: the host, unless NUMBA_CPU_FEATURES names another."""
    told = numba_config.CPU_FEATURES  # pyright: ignore[reportAttributeAccessIssue]
    if told is not None:
        return "+avx512f" in told.split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


LANES = 16 if _has_avx512() else 8
VECTORS = 2  # registers across a tile
WIDTH = LANES * VECTORS  # columns of a tile, and of a block of packed weights
HEIGHT = 14 if LANES == 16 else 6  # rows of the tallest tile: accumulators fill the register file
DEPTH = 384  # most floats in a row of x
ROW = 400  # floats between rows of x and of the result: 25 cache lines, so that rows fall in different sets

FOLDED = 64  # floats that `largest` and `exponentials` look at

_F32, _I32, _I64, _I8P = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
_VECTOR = ir.VectorType(_F32, LANES)
_ALIGN = 4


def _at(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    index = offset if isinstance(offset, ir.Value) else _I64(offset)
    return builder.bitcast(builder.gep(base, [index]), kind.as_pointer())


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, _I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _prefetch(builder: Any, pointer: Any) -> None:
    """Asks for a cache line to be in the second-level cache soon, which more lines at a time can be on their way to."""
    kind = ir.FunctionType(ir.VoidType(), [_I8P, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(pointer, _I8P), _I32(0), _I32(2), _I32(1)])


def _tile_rows(
    builder: Any, rows: int, x: Any, w: Any, ldw: Any, k: Any, acc: Any, chain: Any, ahead: Any
) -> None:
    """acc[rows, WIDTH] = (acc if chain) + x[rows, k] @ w[k, WIDTH]."""
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
    )
    cells = [(m, v) for m in range(rows) for v in range(VECTORS)]
    fresh, resumed = builder.append_basic_block("fresh"), builder.append_basic_block("resumed")
    loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.cbranch(builder.trunc(chain, ir.IntType(1)), resumed, fresh)
    builder.position_at_end(resumed)
    held = [builder.load(_at(builder, acc, m * ROW + v * LANES, _VECTOR), align=_ALIGN) for m, v in cells]
    builder.branch(loop)
    builder.position_at_end(fresh)
    builder.branch(loop)

    builder.position_at_end(loop)
    counter, weights = builder.phi(_I64), builder.phi(w.type)
    sums = [builder.phi(_VECTOR) for _ in cells]
    for block, values in ((fresh, [ir.Constant(_VECTOR, [0.0] * LANES)] * len(cells)), (resumed, held)):
        counter.add_incoming(_I64(0), block)
        weights.add_incoming(w, block)
        for total, value in zip(sums, values, strict=True):
            total.add_incoming(value, block)
    row = [builder.load(_at(builder, weights, v * LANES, _VECTOR), align=_ALIGN) for v in range(VECTORS)]
    for address, step in ahead:
        _prefetch(builder, builder.gep(address, [builder.mul(counter, step)]))
    here = builder.gep(x, [counter])
    scalars = [_splat(builder, builder.load(builder.gep(here, [_I64(m * ROW)]))) for m in range(rows)]
    added = [builder.call(fma, [scalars[m], row[v], sums[i]]) for i, (m, v) in enumerate(cells)]
    following = builder.add(counter, _I64(1))
    counter.add_incoming(following, loop)
    weights.add_incoming(builder.gep(weights, [ldw]), loop)
    for total, value in zip(sums, added, strict=True):
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, k), loop, done)

    builder.position_at_end(done)
    for value, (m, v) in zip(added, cells, strict=True):
        builder.store(value, _at(builder, acc, m * ROW + v * LANES, _VECTOR), align=_ALIGN)


@intrinsic
def _tile(
    typing_context: Any,
    rows: Any,
    x: Any,
    w: Any,
    ldw: Any,
    k: Any,
    acc: Any,
    chain: Any,
    early: Any,
    step: Any,
    also: Any,
    also_step: Any,
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, x, w, ldw, k, acc, chain, early, step, also, also_step = args
        ahead = [(builder.inttoptr(a, _I8P), size) for a, size in ((early, step), (also, also_step))]
        x, w, acc = (builder.inttoptr(address, _F32.as_pointer()) for address in (x, w, acc))
        end = builder.append_basic_block("tile.end")
        switch = builder.switch(rows, end)
        for height in range(1, HEIGHT + 1):
            block = builder.append_basic_block(f"rows.{height}")
            switch.add_case(_I64(height), block)
            builder.position_at_end(block)
            _tile_rows(builder, height, x, w, ldw, k, acc, chain, ahead)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11), codegen


@jit()
def tile(
    rows: int, x: int, w: int, ldw: int, k: int, acc: int, chain: int,
    early: int, step: int, also: int, also_step: int,
) -> None:  # fmt: skip
    """acc[rows, WIDTH] = (acc if chain else 0) + x[rows, k] @ w[k, WIDTH], float32, terms in order of k.

    rows: 1 to HEIGHT; rows of x and acc are ROW floats apart, rows of w `ldw` floats; 1 <= k. Meanwhile
    two cache lines for each term start on their way from memory: one from `early` on, `step` bytes
    after that of the term before, and one likewise from `also` on.
    """
    _tile(rows, x, w, ldw, k, acc, chain, early, step, also, also_step)


@intrinsic
def _fetch_line(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _prefetch(builder, builder.inttoptr(args[0], _I8P))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@jit(inline="always")
def fetch(address: int, size: int) -> None:
    """Asks for `size` bytes from an address to be in the cache soon; the address need not be readable."""
    for offset in range(0, size, 64):
        _fetch_line(address + offset)


@intrinsic
def transpose(typing_context: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> Any:
    """target[j, i] = source[i, j] for 8 rows of LANES floats; rows lie `source_row` and `target_row` floats apart."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, source_row, target, target_row = args
        source, target = (builder.inttoptr(a, _F32.as_pointer()) for a in (source, target))
        rows = [
            builder.load(_at(builder, source, builder.mul(source_row, _I64(i)), _VECTOR), align=_ALIGN)
            for i in range(8)
        ]
        # Interleaving rows that are 4 apart moves the row's highest bit to the column's lowest place. After
        # three rounds the rows hold the columns in order, LANES / 8 columns of 8 in each.
        low = [j // 2 + LANES * (j % 2) for j in range(LANES)]
        high = [LANES // 2 + place for place in low]
        for _ in range(3):
            rows = [
                builder.shuffle_vector(rows[i], rows[i + 4], ir.Constant(ir.VectorType(_I32, LANES), mask))
                for i in range(4)
                for mask in (low, high)
            ]
        eight = ir.VectorType(_F32, 8)
        for j in range(LANES):
            row, first = rows[j * 8 // LANES], j * 8 % LANES
            mask = ir.Constant(ir.VectorType(_I32, 8), list(range(first, first + 8)))
            column = builder.shuffle_vector(row, ir.Constant(_VECTOR, ir.Undefined), mask)
            builder.store(column, _at(builder, target, builder.mul(target_row, _I64(j)), eight), align=_ALIGN)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


def vectors_at(builder: Any, address: Any, count: int) -> list[Any]:
    """Pointers to the vectors that `count` float32 at an address are."""
    base = builder.inttoptr(address, _F32.as_pointer())
    return [_at(builder, base, i, _VECTOR) for i in range(0, count, LANES)]


def fold(builder: Any, parts: list[Any], join: Any) -> Any:
    """One float32 from vectors, a power of two of them: joined in pairs, then halves, so the order never changes."""
    while len(parts) > 1:
        parts = [join(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    (value,), width = parts, LANES
    while width > 1:
        width //= 2
        mask = [(lane + width) % LANES for lane in range(LANES)]
        value = join(
            value, builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(_I32, LANES), mask))
        )
    return builder.extract_element(value, _I32(0))


@intrinsic
def largest(typing_context: Any, address: Any) -> Any:
    """Largest of the FOLDED float32 at an address; none may be NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def join(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        parts = [builder.load(at, align=_ALIGN) for at in vectors_at(builder, args[0], FOLDED)]
        return fold(builder, parts, join)

    return types.float32(types.int64), codegen


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """A pointer made from an address, as `numba.carray` takes it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _I8P)

    return types.voidptr(types.int64), codegen


@intrinsic
def float_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 with these bits (int32)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_F32, [_F32] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32"), args)

    return types.float32(types.float32, types.float32, types.float32), codegen

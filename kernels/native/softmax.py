"""e^x of a tile's row of scores, kept in registers from the load to the sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import mathematics as m
from .vector import FOLDED, LANES, fold, vectors_at


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(a.type, [a.type] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [a, b, c])


def _exp(builder: Any, x: Any) -> Any:
    """`mathematics.exp` of a vector, step by step: the same bits."""

    def all_lanes(value: float | np.float32) -> Any:
        return ir.Constant(x.type, [float(value)] * LANES)

    low, high, zero = all_lanes(m.LOWEST), all_lanes(m.HIGHEST), all_lanes(0.0)
    vanishes = builder.fcmp_ordered("<", x, low)
    x = builder.select(builder.fcmp_ordered(">", x, low), x, low)
    x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
    whole = builder.fsub(_fma(builder, x, all_lanes(m.LOG2E), all_lanes(m.ROUND)), all_lanes(m.ROUND))
    rest = _fma(builder, whole, all_lanes(-m.LN2_HIGH), x)
    rest = _fma(builder, whole, all_lanes(-m.LN2_LOW), rest)
    tail = all_lanes(m.TERMS[-1])
    for term in reversed(m.TERMS[:-1]):
        tail = _fma(builder, rest, tail, all_lanes(term))
    integers = ir.VectorType(ir.IntType(32), LANES)
    exponent = builder.add(builder.fptosi(whole, integers), ir.Constant(integers, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(integers, [23] * LANES)), x.type)
    near_one = _fma(builder, builder.fmul(rest, rest), tail, builder.fadd(rest, all_lanes(1.0)))
    return builder.select(vanishes, zero, builder.fmul(near_one, scale))


@intrinsic
def exponentials(typing_context: Any, address: Any, scale: Any, peak: Any) -> Any:
    """Replaces each of FOLDED float32 x at an address by e^(x * scale - peak); returns their sum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = vectors_at(builder, args[0], FOLDED)
        kind = places[0].type.pointee
        scale, peak = (
            builder.shuffle_vector(
                builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0)),
                ir.Constant(kind, ir.Undefined),
                ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES),
            )
            for value in (args[1], builder.fneg(args[2]))
        )
        parts = [_exp(builder, _fma(builder, builder.load(at, align=4), scale, peak)) for at in places]
        for part, at in zip(parts, places, strict=True):
            builder.store(part, at, align=4)
        return fold(builder, parts, builder.fadd)

    return types.float32(types.int64, types.float32, types.float32), codegen

"""Every check of a kernel that a GPU run makes, through the interpreter.

float32 and float16 only: the interpreter's bfloat16 `tl.dot` is wrong, see
`test_known_gap_of_the_interpreter`.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import triton
import triton.language as tl
from tests.gpu import attention_checks, expert_checks, fp8_checks, mxfp4_checks, row_checks, sample_checks
from tests.gpu.check import Check, Place

CPU = torch.device("cpu")
CHECKS = [
    *attention_checks.CHECKS,
    *row_checks.CHECKS,
    *fp8_checks.CHECKS,
    *expert_checks.CHECKS,
    *mxfp4_checks.CHECKS,
    *sample_checks.CHECKS,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_float16(check: Check) -> None:
    check.run(Place(CPU, torch.float16))


@pytest.mark.parametrize("check", [c for c in CHECKS if not c.heavy], ids=lambda check: check.name)
def test_float32(check: Check) -> None:
    check.run(Place(CPU, torch.float32))


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dim", [64, 256])
def test_queries_of_bfloat16_beside_an_fp8_cache(dim: int, window: int | None) -> None:
    """They become float16, which the interpreter multiplies right, and wide ones pass through the result's memory."""
    lengths = [(1, 70), (70, 300), (3, 3)]
    shape = attention_checks.Shape(dim=dim, group=4, page=16, lengths=lengths, fp8=True, window=window)
    attention_checks.check(shape).run(Place(CPU, torch.bfloat16))


@pytest.mark.parametrize(
    "shapes", [attention_checks.DECODE, attention_checks.PREFILL], ids=["decode", "prefill"]
)
def test_attention_is_checked_for_every_pair_of_what_it_depends_on(
    shapes: list[attention_checks.Shape],
) -> None:
    values = [
        (64, 128, 256),
        (1, 4, 8),
        (16, 32, 64),
        (False, True),
        (False, True),
        (False, True),
        (1, 2),
        (False, True),
    ]
    held = [
        (s.dim, s.group, s.page, s.window is not None, s.soft_cap is not None, s.fp8, s.kv_heads, s.sinks)
        for s in shapes
    ]
    for i, j in itertools.combinations(range(len(values)), 2):
        missing = set(itertools.product(values[i], values[j])) - {(row[i], row[j]) for row in held}
        assert not missing, (i, j, missing)


def test_attention_is_checked_from_the_shortest_to_long_contexts() -> None:
    decodes = {context for shape in attention_checks.DECODE for _, context in shape.lengths}
    chunks = {pair for shape in attention_checks.PREFILL for pair in shape.lengths}
    assert {1, 4000} <= decodes
    assert {(1000, 1000), (128, 4000)} <= chunks


@triton.jit
def _product(a, b, out, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def _narrow(x, out, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


def test_carries_are_lost() -> None:
    """The interpreter rounds 127.9 to 64 in e4m3: a carry out of the mantissa does not reach the exponent.

    When this fails, checks may compare values at powers of two on a CPU too.
    """
    x, out = torch.full((16,), 127.9), torch.zeros(16).to(torch.float8_e4m3fn)
    _narrow[(1,)](x, out, N=tl.constexpr(16))
    assert out[0].float() == 64.0
    assert x.to(torch.float8_e4m3fn)[0].float() == 128.0


def test_known_gap_of_the_interpreter() -> None:
    """When this fails, the interpreter multiplies bfloat16 rightly, and the checks above should run in it too."""
    a, b, out = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16(), torch.empty(16, 16)
    _product[(1,)](a, b, out, N=tl.constexpr(16))
    assert (out - a.float() @ b.float()).abs().max() > 1.0

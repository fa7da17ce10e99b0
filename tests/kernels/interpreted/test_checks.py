"""Every check of a kernel that a GPU run makes, through the interpreter.

float32 and float16 only: the interpreter's bfloat16 `tl.dot` is wrong, see
`test_known_gap_of_the_interpreter`.
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from tests.gpu import attention_checks, expert_checks, fp8_checks, row_checks, sample_checks
from tests.gpu.check import Check, Place

CPU = torch.device("cpu")
CHECKS = [
    *attention_checks.CHECKS,
    *row_checks.CHECKS,
    *fp8_checks.CHECKS,
    *expert_checks.CHECKS,
    *sample_checks.CHECKS,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_float16(check: Check) -> None:
    check.run(Place(CPU, torch.float16))


@pytest.mark.parametrize("check", [c for c in CHECKS if not c.heavy], ids=lambda check: check.name)
def test_float32(check: Check) -> None:
    check.run(Place(CPU, torch.float32))


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

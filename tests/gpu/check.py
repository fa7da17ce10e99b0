"""What a check of a kernel is: a name, and a function that compares it with plain torch on some device.

The same checks run on a GPU (`run.py`) and, through Triton's interpreter, on a CPU (`tests/kernels`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a check runs and in which dtype."""

    device: torch.device
    dtype: torch.dtype

    def tensor(self, *size: int) -> torch.Tensor:
        """Normal numbers, the same on every device."""
        return torch.randn(size).to(self.device, self.dtype)


@dataclass(frozen=True, slots=True)
class Check:
    """`run` raises AssertionError when the kernel is wrong."""

    name: str
    run: Callable[[Place], None]
    heavy: bool = False  # takes the interpreter seconds: one dtype is enough there


TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def compare(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Both in float32, absolutely and relatively within `tolerance`; NaN is never right."""
    torch.testing.assert_close(
        got.float().cpu(), expected.float().cpu(), rtol=tolerance, atol=tolerance, check_device=False
    )


def compare_sums(got: torch.Tensor, expected: torch.Tensor) -> None:
    """For long sums that the tensor cores of Hopper keep in some 14 bits (arXiv 2412.19437, section 3.5.2): of 16,384
    products such sums lose a third of a percent, and none of them more than a fiftieth of what is usual.
    """
    got, expected = got.float().cpu(), expected.float().cpu()
    usual = expected.square().mean().sqrt()
    error = got - expected
    assert error.norm() <= 0.02 * expected.norm(), (
        f"off by {float(error.norm() / expected.norm()):.2%} in all"
    )
    assert error.abs().max() <= 0.15 * usual, f"a sum is off by {float(error.abs().max() / usual):.2%}"


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within it, `owner.name` is `value`."""
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)

"""A way is chosen by time, once a key, and the first one when in doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from camshaft.kernels.linear.fastest import Fastest
from camshaft.kernels.linear.fp8 import Fp8Linear, Fp8Weight, quantize_weight


class Stopwatch:
    """Gives each way a time of its own, whatever it is given."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.calls = seconds, 0

    def __call__(self, run: Callable[[], Any]) -> float:
        self.calls += 1
        return self.seconds[run()]


def first(*_: int) -> str:
    return "first"


def second(*_: int) -> str:
    return "second"


def test_the_faster_way_is_taken_and_remembered() -> None:
    watch = Stopwatch(first=2.0, second=1.0)
    choose = Fastest(watch)
    assert choose("wide", [first, second], 1, 2) is second
    measured = watch.calls
    watch.seconds = {"first": 1.0, "second": 2.0}
    assert choose("wide", [first, second], 1, 2) is second
    assert watch.calls == measured
    assert choose("narrow", [first, second], 1, 2) is first


def test_noise_changes_no_choice() -> None:
    assert Fastest(Stopwatch(first=1.0, second=0.99))("wide", [first, second]) is first


def test_a_way_that_cannot_run_is_not_taken() -> None:
    def refused() -> str:
        raise RuntimeError("not supported")

    choose = Fastest(Stopwatch(second=1.0))
    assert choose("wide", [refused, second]) is second
    assert choose("narrow", [second, refused]) is second
    with pytest.raises(RuntimeError, match="not supported"):
        choose("none", [refused, refused])


def test_a_single_way_is_not_measured() -> None:
    watch = Stopwatch()
    assert Fastest(watch)("wide", [second]) is second
    assert watch.calls == 0


def test_a_layer_writes_where_it_is_told() -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(3, 128), torch.randn(32)
    for weight in (
        quantize_weight(torch.randn(32, 128)),
        Fp8Weight(torch.randn(32, 128).to(torch.float8_e4m3fn), torch.full((1, 1), 0.5)),
        Fp8Weight(torch.randn(32, 128).to(torch.float8_e4m3fn), torch.full((1,), 0.5)),
    ):
        layer = Fp8Linear(weight, bias)
        expected = layer(x)
        out = torch.full_like(expected, 7.0)
        assert layer(x, out) is out
        assert torch.equal(out, expected)
        assert torch.equal(layer(x, out, accumulate=True), expected + expected)
        narrow = torch.empty(expected.shape, dtype=torch.float16)
        assert torch.equal(layer(x, narrow), expected.half())

"""Every public op refuses what does not fit with an error that names the argument, on any device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from camshaft.kernels.checks import KernelInputError
from camshaft.kernels.experts import route
from camshaft.kernels.experts.fp8_grouped import ExpertWeights, Groups, grouped_product
from camshaft.kernels.fp8 import FP8
from camshaft.kernels.linear import InputNorm
from camshaft.kernels.prepare_batch import prepare_batch
from camshaft.kernels.quantize_rows import quantize_rows
from camshaft.kernels.rms_norm import rms_norm
from camshaft.kernels.rope_kv_write import rope_kv_write
from camshaft.kernels.sample import Draws, sample
from camshaft.kernels.silu_mul import silu_mul

X, W = torch.zeros(2, 64), torch.ones(64)


def rope(**other: object) -> None:
    cache = torch.zeros(2, 1, 16, 64)
    fields = {
        "qkv": torch.zeros(2, 3 * 64),
        "positions": torch.zeros(2).long(),
        "slots": torch.zeros(2).long(),
    }
    fields |= {"cos_sin": torch.zeros(4, 64), "k_cache": cache, "v_cache": cache.clone(), **other}
    rope_kv_write(**fields)  # type: ignore[arg-type]


def draw(**other: torch.Tensor) -> None:
    floats, longs = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    fields = {"temperature": floats, "top_k": longs.int(), "top_p": floats, "min_p": floats, "seed": longs}
    logits = other.pop("logits", X)
    sample(logits, Draws(**{**fields, "position": longs, **other}))


def prepare(**other: torch.Tensor) -> None:
    fields = {"known": torch.zeros(2, 8, dtype=torch.int64), "tables": torch.zeros(2, 1, dtype=torch.int32)}
    fields |= {"rows": torch.zeros(1, dtype=torch.int32), "starts": torch.zeros(1, dtype=torch.int32)}
    fields |= {"query_starts": torch.tensor([0, 1], dtype=torch.int32), **other}
    prepare_batch(**fields, block_size=16, num_tokens=1)


def grouped(x: torch.Tensor, scales: torch.Tensor) -> None:
    weights = ExpertWeights(torch.zeros(2, 64, 128).to(FP8), torch.ones(2, 64))
    groups = Groups(torch.zeros(16).int(), torch.zeros(1).int(), 2, 16)
    grouped_product(x, scales, weights, groups, 1, None, torch.float32)


WRONG: list[tuple[str, Callable[[], object]]] = [
    ("weight", lambda: rms_norm(X, W[:5], 1e-5)),
    ("added", lambda: rms_norm(X, W, 1e-5, added=X[:1])),
    ("out", lambda: rms_norm(X, W, 1e-5, X[:1].clone())),
    ("gate_up", lambda: silu_mul(torch.zeros(2, 63))),
    ("out", lambda: silu_mul(X, torch.zeros(2, 31))),
    ("qkv", lambda: rope(qkv=torch.zeros(2, 100))),
    ("qkv", lambda: rope(qkv=torch.zeros(2, 2 * 64))),
    ("cos_sin", lambda: rope(cos_sin=torch.zeros(4, 32))),
    ("positions", lambda: rope(positions=torch.zeros(3).long())),
    ("slots", lambda: rope(slots=torch.zeros(1).long())),
    ("v_cache", lambda: rope(v_cache=torch.zeros(1, 1, 16, 64))),
    ("kv_scales", lambda: rope(kv_scales=(0.5, 1.0))),
    ("kv_scales", lambda: rope(kv_scales=(-1.0, 1.0))),
    ("logits", lambda: draw(logits=X.half())),
    ("top_k", lambda: draw(top_k=torch.zeros(3).int())),
    ("seed", lambda: draw(seed=torch.zeros(1).long())),
    ("group", lambda: quantize_rows(X, group=48)),
    ("gated", lambda: quantize_rows(X, gated=True, norm=InputNorm(W[:32], 1e-5))),
    ("norm", lambda: quantize_rows(X, norm=InputNorm(W[:32], 1e-5))),
    ("added", lambda: quantize_rows(X, added=X[:1])),
    ("static_scale", lambda: quantize_rows(X, static_scale=W)),
    ("static_scale", lambda: quantize_rows(X, group=32, static_scale=W[:1])),
    ("top_k", lambda: route(X, 65, renormalise=True)),
    ("top_k", lambda: route(X, 0, renormalise=True)),
    ("starts", lambda: prepare(starts=torch.zeros(2).int())),
    ("query_starts", lambda: prepare(query_starts=torch.zeros(1).int())),
    ("tables", lambda: prepare(tables=torch.zeros(3, 1).int())),
    ("x", lambda: grouped(torch.zeros(2, 64).to(FP8), torch.ones(2, 1))),
    ("x_scales", lambda: grouped(torch.zeros(2, 128).to(FP8), torch.ones(2, 2))),
]


@pytest.mark.parametrize(
    ("argument", "call"), WRONG, ids=[f"{i}-{name}" for i, (name, _) in enumerate(WRONG)]
)
def test_a_wrong_argument_is_named(argument: str, call: Callable[[], object]) -> None:
    with pytest.raises(KernelInputError) as raised:
        call()
    assert raised.value.argument == argument
    assert argument in str(raised.value)


def test_what_fits_is_not_refused() -> None:
    rope()
    draw()
    prepare()
    grouped(torch.zeros(2, 128).to(FP8), torch.ones(2, 1))

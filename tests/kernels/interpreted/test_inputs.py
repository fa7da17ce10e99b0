"""What a GPU kernel would misread is refused by a typed error that names the argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.gpu.attention_checks import Case, Shape, attend, make_case
from tests.gpu.check import Place

from camshaft.kernels import checks
from camshaft.kernels.checks import KernelInputError
from camshaft.kernels.experts.fp8_grouped import ExpertWeights, Groups
from camshaft.kernels.experts.fp8_grouped.triton import grouped_product
from camshaft.kernels.experts.mxfp4 import Mxfp4Weight
from camshaft.kernels.experts.mxfp4 import triton as mxfp4
from camshaft.kernels.experts.mxfp4.packing import FORMS, pack
from camshaft.kernels.experts.triton import GroupedExperts
from camshaft.kernels.linear.fp8_product.triton import fp8_product
from camshaft.kernels.prepare_batch.triton import prepare_batch
from camshaft.kernels.quantize_rows.triton import quantize_rows
from camshaft.kernels.rms_norm.triton import rms_norm
from camshaft.kernels.rope_kv_write.triton import rope_kv_write
from camshaft.kernels.sample import Draws
from camshaft.kernels.sample.triton import sample
from camshaft.kernels.silu_mul.triton import silu_mul

SHAPE = Shape(dim=64, group=2, page=16, lengths=[(1, 20), (3, 9)])


def case() -> Case:
    return make_case(SHAPE, Place(torch.device("cpu"), torch.float32))


def other_dtype(c: Case) -> None:
    c.v_cache = c.v_cache.half()


def other_strides(c: Case) -> None:
    c.k_cache = c.k_cache.transpose(1, 2).contiguous().transpose(1, 2)


def other_rows(c: Case) -> None:
    c.q = c.q.t().contiguous().t()


def other_device(c: Case) -> None:
    c.v_cache = c.v_cache.to("meta")


def long_tables(c: Case) -> None:
    c.sequences = dataclasses.replace(c.sequences, block_tables=c.sequences.block_tables.long())


def whole_numbers(c: Case) -> None:
    c.sinks = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("spoil", "argument"),
    [
        (other_dtype, "v_cache"),
        (other_strides, "k_cache"),
        (other_rows, "q"),
        (other_device, "v_cache"),
        (long_tables, "block_tables"),
        (whole_numbers, "sinks"),
    ],
)
def test_a_wrong_tensor_is_named(spoil: Callable[[Case], None], argument: str) -> None:
    wrong = case()
    if spoil is other_strides:
        wrong = make_case(dataclasses.replace(SHAPE, kv_heads=2), Place(torch.device("cpu"), torch.float32))
    spoil(wrong)
    with pytest.raises(KernelInputError) as raised:
        attend(SHAPE, wrong, 0.125)
    assert raised.value.argument == argument
    assert argument in str(raised.value)


@pytest.mark.parametrize("block", [-1, 10_000])
def test_a_page_out_of_range_is_found_in_debug_mode(block: int) -> None:
    wrong = case()
    wrong.sequences.block_tables[1, 0] = block
    with checks.debug(), pytest.raises(KernelInputError, match=rf"block_tables \[1, 0\] is {block}"):
        attend(SHAPE, wrong, 0.125)
    assert not checks.debugging()


def test_entries_past_a_context_may_be_anything() -> None:
    right = case()  # its tables hold 2^30 past each context
    with checks.debug():
        attend(SHAPE, right, 0.125)


def test_a_slot_out_of_range_is_found_in_debug_mode() -> None:
    qkv, cos_sin = torch.zeros(2, 3 * 64), torch.zeros(4, 64)
    cache = torch.zeros(2, 1, 16, 64)
    positions, slots = torch.zeros(2, dtype=torch.int64), torch.tensor([-1, 32])
    with (
        checks.debug(),
        pytest.raises(KernelInputError, match=r"slots \[1\] is 32, must be -1 or more and below 32"),
    ):
        rope_kv_write(qkv, positions, slots, cos_sin, cache, cache.clone(), None)


def _fp8(*size: int) -> torch.Tensor:
    return torch.zeros(size).to(torch.float8_e4m3fn)


def _draws(**other: torch.Tensor) -> Draws:
    floats, longs = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    fields = {
        "temperature": floats,
        "top_k": torch.zeros(2, dtype=torch.int32),
        "top_p": floats,
        "min_p": floats,
    }
    return Draws(**{**fields, "seed": longs, "position": longs, **other})


def _prepare(**other: torch.Tensor) -> None:
    int32 = torch.int32
    fields = {"known": torch.zeros(2, 8, dtype=torch.int64), "tables": torch.zeros(2, 1, dtype=int32)}
    fields |= {"rows": torch.zeros(1, dtype=int32), "starts": torch.zeros(1, dtype=int32)}
    fields |= {"query_starts": torch.tensor([0, 1], dtype=int32)}
    prepare_batch(**{**fields, **other}, block_size=16, made=torch.zeros(3, 1, dtype=torch.int64))


def _experts(**other: torch.Tensor) -> None:
    """Two rows of one choice each."""
    one = [torch.zeros(32, 64)]
    fields = {"x": torch.zeros(2, 64), "ids": torch.zeros(2, 1).long(), "weights": torch.ones(2, 1), **other}
    GroupedExperts(one, one, [one[0].t()])(fields["x"], fields["ids"], fields["weights"], torch.zeros(2, 64))


def _grouped(**other: torch.Tensor) -> None:
    fields = {
        "values": _fp8(2, 64, 128),
        "scales": torch.ones(2, 64),
        "x": _fp8(2, 128),
        "x_scales": torch.ones(2, 1),
    }
    fields |= {"places": torch.zeros(16, dtype=torch.int32), "row_weights": torch.ones(2), **other}
    groups = Groups(fields["places"], torch.zeros(1, dtype=torch.int32), 2, 16)
    grouped_product(
        fields["x"], fields["x_scales"], ExpertWeights(fields["values"], fields["scales"]), groups, 1,
        fields["row_weights"], torch.zeros(2, 64),
    )  # fmt: skip


def _product(**other: torch.Tensor) -> None:
    fields = {
        "x": _fp8(2, 128),
        "x_scales": torch.ones(2, 1),
        "weight": _fp8(64, 128),
        "w_scales": torch.ones(64),
    }
    fp8_product(**{**fields, "out": torch.zeros(2, 64), **other})


def _mxfp4(**other: torch.Tensor) -> None:
    fields = {
        "x": torch.zeros(2, 64).half(),
        "places": torch.zeros(16, dtype=torch.int32),
        "row_weights": W[:2],
    }
    weight = Mxfp4Weight(*(torch.zeros(size, dtype=torch.uint8) for size in ((1, 32, 2, 16), (1, 32, 2))))
    packed, form = pack(weight, torch.float16, paired=False), FORMS[torch.float16]
    fields |= other
    groups = Groups(fields["places"], torch.zeros(1, dtype=torch.int32), 2, 16)
    mxfp4.product(fields["x"], packed, groups, 1, form, row_weights=fields["row_weights"])


X, W = torch.zeros(2, 64), torch.ones(64)
WRONG: list[tuple[str, Callable[[], object]]] = [
    ("weight", lambda: rms_norm(X, W.long(), 1e-5, X.clone())),
    ("added", lambda: rms_norm(X, W, 1e-5, X.clone(), torch.zeros(2, 128)[:, ::2])),
    ("out", lambda: rms_norm(X, W, 1e-5, X.to("meta"))),
    ("x", lambda: quantize_rows(X.long(), 0, None, False, None, _fp8(2, 64), torch.ones(2, 1))),
    ("static_scale", lambda: quantize_rows(X, 0, None, False, W[:1].half(), _fp8(2, 64), torch.ones(2, 1))),
    ("gate_up", lambda: silu_mul(torch.zeros(2, 256)[:, :128], X.clone())),
    ("x", lambda: _product(x=torch.zeros(2, 128))),
    ("x", lambda: _product(x=_fp8(2, 64), weight=_fp8(64, 64))),
    ("weight", lambda: _product(weight=_fp8(64, 256))),
    ("weight", lambda: _product(weight=_fp8(64, 256)[:, ::2])),
    ("x_scales", lambda: _product(x_scales=torch.ones(3, 1))),
    ("w_scales", lambda: _product(w_scales=W.half())),
    ("w_scales", lambda: _product(w_scales=torch.ones(63))),
    ("out", lambda: _product(out=torch.zeros(2, 63))),
    ("out", lambda: _product(out=torch.zeros(2, 64, device="meta"))),
    ("seed", lambda: sample(X, _draws(seed=torch.zeros(2)), torch.zeros(2, dtype=torch.int64))),
    ("top_k", lambda: sample(X, _draws(top_k=torch.zeros(2)), torch.zeros(2, dtype=torch.int64))),
    ("known", lambda: _prepare(known=torch.zeros(2, 8, dtype=torch.int32))),
    ("tables", lambda: _prepare(tables=torch.zeros(2, 1))),
    ("weights.values", lambda: _grouped(values=torch.zeros(2, 64, 128))),
    ("places", lambda: _grouped(places=torch.zeros(16, dtype=torch.int64))),
    ("row_weights", lambda: _grouped(row_weights=torch.ones(2).half())),
    ("row_weights", lambda: _grouped(row_weights=W[:1])),
    ("x", lambda: _grouped(x=_fp8(1, 128))),
    ("x", lambda: _experts(x=torch.zeros(1, 64))),
    ("x", lambda: _experts(x=torch.zeros(2, 32))),
    ("x", lambda: _experts(x=torch.zeros(2, 64).half())),
    ("row_weights", lambda: _experts(weights=W[:1])),
    ("x", lambda: _mxfp4(x=X)),
    ("x", lambda: _mxfp4(x=torch.zeros(2, 32).half())),
    ("x", lambda: _mxfp4(x=torch.zeros(64, 2).half().t())),
    ("x", lambda: _mxfp4(x=torch.zeros(1, 64).half())),
    ("x", lambda: _mxfp4(x=torch.zeros(64).half())),
    ("places", lambda: _mxfp4(places=torch.zeros(8, dtype=torch.int32))),
    ("row_weights", lambda: _mxfp4(row_weights=W[:3])),
    ("row_weights", lambda: _mxfp4(row_weights=W[:2].half())),
]


@pytest.mark.parametrize(
    ("argument", "call"), WRONG, ids=[f"{i}-{name}" for i, (name, _) in enumerate(WRONG)]
)
def test_every_op_names_a_wrong_argument(argument: str, call: Callable[[], object]) -> None:
    with pytest.raises(KernelInputError) as raised:
        call()
    assert raised.value.argument == argument

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
from camshaft.kernels.rope_kv_write.triton import rope_kv_write

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


@pytest.mark.parametrize(
    ("spoil", "argument"),
    [
        (other_dtype, "v_cache"),
        (other_strides, "k_cache"),
        (other_rows, "q"),
        (other_device, "v_cache"),
        (long_tables, "block_tables"),
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
    with checks.debug(), pytest.raises(KernelInputError, match=r"slots \[1\] is 32; the cache has 32"):
        rope_kv_write(qkv, positions, slots, cos_sin, cache, cache.clone(), None)

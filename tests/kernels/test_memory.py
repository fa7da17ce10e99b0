from __future__ import annotations

import ctypes

import numpy as np
import torch

from camshaft.kernels.memory import CHUNK_BYTES, Arena, DeviceScratch, Scratch, ask_for_large_pages


def test_pieces_lie_apart_and_begin_at_cache_lines() -> None:
    arena = Arena()
    pieces = [arena.empty(count, 3).fill_(count) for count in (1, 5, 100, 7)]
    for piece, count in zip(pieces, (1, 5, 100, 7), strict=True):
        assert piece.shape == (count, 3)
        assert piece.is_contiguous()
        assert torch.all(piece == count)
    assert all((piece.data_ptr() - pieces[0].data_ptr()) % 64 == 0 for piece in pieces)


def test_a_full_chunk_is_followed_by_another() -> None:
    arena = Arena()
    size = CHUNK_BYTES // 4 // 4  # floats: four fill a chunk
    pieces = [arena.empty(size) for _ in range(5)]
    storages = {piece.untyped_storage().data_ptr() for piece in pieces}
    assert len(storages) == 2


def test_a_large_tensor_has_memory_of_its_own() -> None:
    arena = Arena()
    small, large = arena.empty(10), arena.empty(CHUNK_BYTES // 4)
    assert large.untyped_storage().nbytes() == CHUNK_BYTES
    assert arena.empty(10).untyped_storage().data_ptr() == small.untyped_storage().data_ptr()


def test_advice_leaves_small_tensors_alone() -> None:
    tensor = torch.arange(10.0)
    ask_for_large_pages(tensor)
    assert torch.equal(tensor, torch.arange(10.0))


def test_scratch_that_was_handed_out_stays_where_it_is() -> None:
    scratch = Scratch()
    first = scratch.address(10)
    assert scratch.address(5) == first
    grown = scratch.address(11)
    assert grown != first
    assert scratch.address(20) == grown  # it doubled
    assert not np.ctypeslib.as_array((ctypes.c_float * 10).from_address(first)).any()


def test_scratch_of_a_device_grows_and_keeps_what_a_graph_may_write_to() -> None:
    scratch, device = DeviceScratch(torch.int32), torch.device("cpu")
    first = scratch(device, 10)
    assert first.dtype == torch.int32
    assert not first.any()
    assert scratch(device, 4) is first
    first.fill_(7)
    grown = scratch(device, 11)
    assert grown.numel() == 11
    assert not grown.any()
    assert scratch(device, 10) is grown
    at = first.data_ptr()
    del first
    assert all(torch.empty(10, dtype=torch.int32).data_ptr() != at for _ in range(100))

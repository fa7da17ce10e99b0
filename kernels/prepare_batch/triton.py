"""Triton on CUDA: one program a sequence and strip of its tokens, and one more for the padding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks

STRIP = 256


@triton.jit(do_not_specialize=["rows", "starts", "query_starts", "n", "total"])
def prepare_batch_kernel(
    known, tables, rows, starts, query_starts, made, n, total, known_stride, table_stride, block_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (n + 1,). Program n fills the padding."""
    i = tl.program_id(0)
    begin = tl.load(query_starts + i)
    if i == n:
        for at in range(begin, total, BLOCK):
            where = at + tl.arange(0, BLOCK)
            nothing = tl.zeros([BLOCK], tl.int64)
            mask = where < total
            tl.store(made + where, nothing, mask=mask)
            tl.store(made + total + where, nothing, mask=mask)
            tl.store(made + 2 * total + where, nothing - 1, mask=mask)
        return
    end = tl.load(query_starts + i + 1)
    row, start = tl.load(rows + i).to(tl.int64), tl.load(starts + i)
    for at in range(begin, end, BLOCK):
        where = at + tl.arange(0, BLOCK)
        mask = where < end
        position = (start + where - begin).to(tl.int64)
        token = tl.load(known + row * known_stride + position, mask=mask, other=0)
        block = tl.load(tables + row * table_stride + position // block_size, mask=mask, other=0).to(tl.int64)
        tl.store(made + where, token, mask=mask)
        tl.store(made + total + where, position, mask=mask)
        tl.store(made + 2 * total + where, block * block_size + position % block_size, mask=mask)


def prepare_batch(
    known: torch.Tensor,
    tables: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    query_starts: torch.Tensor,
    block_size: int,
    made: torch.Tensor,
) -> None:
    """As the reference. Raises KernelInputError."""
    op, device = "prepare_batch", known.device
    checks.check_tensor(op, "known", known, device, checks.LONGS)
    for name, tensor in (
        ("tables", tables), ("rows", rows), ("starts", starts), ("query_starts", query_starts),
    ):  # fmt: skip
        checks.check_tensor(op, name, tensor, device, checks.INTEGERS)
    if checks.debugging():
        checks.check_range(op, "rows", rows, 0, len(known))
        lengths = query_starts[1:] - query_starts[:-1]
        checks.check_range(op, "starts", starts, 0, known.shape[1] + 1)
        checks.check_range(
            op, "query_starts", starts + lengths, 0, min(known.shape[1], tables.shape[1] * block_size) + 1
        )
    prepare_batch_kernel[(len(rows) + 1,)](
        known, tables, rows, starts, query_starts, made, len(rows), made.shape[1],
        known.stride(0), tables.stride(0), block_size, BLOCK=STRIP, num_warps=2,
    )  # fmt: skip

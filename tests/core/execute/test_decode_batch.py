"""Batches of decodes alone, gathered in place, hold what those of the general path hold."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.execute.rows import RowState
from camshaft.core.schedule.plan import StepPlan

ROWS, LENGTH, BLOCK = 6, 50, 8
NOTHING = np.empty(0, dtype=np.int64)


def plan_of(rows: list[int], starts: list[int]) -> StepPlan:
    count = len(rows)
    return StepPlan(
        step=0,
        rows=np.array(rows, dtype=np.int32),
        starts=np.array(starts, dtype=np.int32),
        num_tokens=np.ones(count, dtype=np.int32),
        samples=np.ones(count, dtype=bool),
        num_decodes=count,
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True),
    starts=st.lists(st.integers(0, LENGTH - 1), min_size=ROWS, max_size=ROWS),
    seed=st.integers(0, 99),
)
def test_a_batch_holds_what_the_general_path_gathers(rows: list[int], starts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    state = RowState(ROWS, LENGTH, BLOCK, torch.device("cpu"))
    state.tokens.random_(0, 1000, generator=generator)
    state.tables.random_(0, 99, generator=generator)
    plan = plan_of(rows, starts[: len(rows)])
    got = state.batch(plan, NOTHING)
    expected = state.batch(replace(plan, num_decodes=0), NOTHING)
    assert got.decodes_only
    assert not expected.decodes_only
    reached = expected.block_tables.shape[1]
    for index, context in enumerate(got.context_lens.tolist()):
        blocks = -(-context // BLOCK)
        assert blocks <= reached
        assert torch.equal(got.block_tables[index, :blocks], expected.block_tables[index, :blocks])
    for field in fields(got):
        if field.name not in ("block_tables", "num_decodes", "decodes_only"):
            mine, theirs = getattr(got, field.name), getattr(expected, field.name)
            assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs, field.name


def test_a_size_keeps_its_place() -> None:
    state = RowState(ROWS, LENGTH, BLOCK, torch.device("cpu"))
    first = state.batch(plan_of([1, 2], [3, 4]), NOTHING)
    state.batch(plan_of([5, 0, 1], [7, 8, 9]), NOTHING)
    again = state.batch(plan_of([4, 0], [30, 2]), NOTHING)
    for name in ("tokens", "positions", "slots", "query_starts", "context_lens", "block_tables"):
        assert getattr(first, name).data_ptr() == getattr(again, name).data_ptr(), name


def test_drawn_tokens_are_known_to_the_next_batch() -> None:
    state = RowState(ROWS, LENGTH, BLOCK, torch.device("cpu"))
    plan = plan_of([4, 2], [10, 20])
    state.append(plan, torch.tensor([77, 88]))
    assert state.batch(plan_of([2, 4], [21, 11]), NOTHING).tokens.tolist() == [88, 77]

"""Decode steps that run as recorded programs have the bits of those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.model.batch import ForwardBatch, PagedCache
from camshaft.core.model.loading import open_weights
from camshaft.core.model.registry import build

CPU = torch.device("cpu")
BLOCK, BLOCKS = 8, 100
COMMON = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
KINDS = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 96, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1, "intermediate_size": 80, "head_dim": 24},
    # What the compiled kernels do not take: the pass cannot be recorded.
    "mistral": {"num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 12},
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path: Path):
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **COMMON, **KINDS[request.param])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return build(read_shape(tmp_path), open_weights(tmp_path), CPU, torch.float32)


def cache_of(model, seed: int) -> PagedCache:
    generator = torch.Generator().manual_seed(seed)
    size = (BLOCKS, model.shape.num_kv_heads, BLOCK, model.shape.head_dim)

    def layers() -> list[torch.Tensor]:
        return [torch.randn(size, generator=generator) for _ in range(model.shape.num_layers)]

    return PagedCache(layers(), layers(), BLOCK)


def decodes(positions: list[int], seed: int = 0) -> ForwardBatch:
    """Decodes at these positions, each over blocks of its own."""
    count, at = len(positions), torch.tensor(positions)
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed))
    tables = order[: count * (BLOCKS // count)].view(count, -1).int()
    slots = tables[torch.arange(count), at // BLOCK].long() * BLOCK + at % BLOCK
    return ForwardBatch(
        tokens=at * 7 % 300,
        positions=at,
        slots=slots,
        query_starts=torch.arange(count + 1, dtype=torch.int32),
        context_lens=(at + 1).int(),
        block_tables=tables,
        logit_indices=torch.arange(count),
        num_decodes=count,
        max_query_len=1,
        max_context_len=max(positions) + 1,
        decodes_only=True,
    )


def both(model, batch: ForwardBatch, cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits as recorded and as computed layer by layer; both write the same K and V."""
    recorded = model.forward(batch, cache).clone()
    return recorded, model.forward(replace(batch, decodes_only=False), cache)


def test_recorded_decodes_have_the_bits_of_others(model) -> None:
    cache = cache_of(model, 0)
    for positions in ([9], [3, 30], [10], [0, 5, 31, 17], [3, 30], list(range(20)), [9]):
        recorded, expected = both(model, decodes(positions, len(positions)), cache)
        assert torch.equal(recorded, expected), positions


def test_a_program_reads_what_its_tensors_hold_now(model) -> None:
    cache, batch = cache_of(model, 0), decodes([9, 12])
    first = model.forward(batch, cache).clone()
    other = decodes([20, 3], seed=5)
    for name in ("tokens", "positions", "slots", "context_lens", "block_tables"):
        getattr(batch, name).copy_(getattr(other, name))
    recorded, expected = both(model, batch, cache)
    assert torch.equal(recorded, expected)
    assert not torch.equal(recorded, first)


def test_another_cache_and_batches_that_lie_elsewhere_are_noticed(model) -> None:
    held = [decodes([9, 12], seed) for seed in range(3)]  # all alive: each at another place
    for cache in (cache_of(model, 0), cache_of(model, 1)):
        for batch in held:
            recorded, expected = both(model, batch, cache)
            assert torch.equal(recorded, expected)


def test_programs_are_kept_where_the_kernels_do_all_the_work(model) -> None:
    cache = cache_of(model, 0)
    for count in (1, 2, 20, 40):  # growing scratch is no work of torch's
        model.forward(decodes([9] * count), cache)
        assert (model._programs is None) == (model.shape.head_dim == 12)

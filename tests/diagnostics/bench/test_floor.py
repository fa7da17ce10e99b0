"""The byte floor of one stream."""

from __future__ import annotations

import pytest

from camshaft.core.shape import weight_bytes
from camshaft.diagnostics.bench.floor import Floor, bytes_per_token, read_bandwidth
from camshaft.diagnostics.cost.models import load_model


def test_a_tied_head_is_read_once_and_an_untied_embedding_not_at_all() -> None:
    tied, untied = load_model("smollm2-135m"), load_model("llama-3.1-8b")
    weights = weight_bytes(tied, dtype="float32")
    assert bytes_per_token(weights, tied) == weights.total
    weights = weight_bytes(untied)
    assert weights.embedding > 1e9
    assert bytes_per_token(weights, untied) == weights.total - weights.embedding


def test_a_token_reads_its_own_experts() -> None:
    shape = load_model("mixtral-8x7b")
    weights = weight_bytes(shape)
    read = bytes_per_token(weights, shape)
    assert read == weights.total - weights.embedding - weights.experts * 6 // 8


def test_the_best_sample_counts() -> None:
    floor = Floor(1000)
    assert floor.tokens_per_s is None
    floor.samples += [2e6, 5e6, 1e6]
    assert floor.tokens_per_s == pytest.approx(5000)


def test_memory_has_a_speed() -> None:
    assert 1e8 < read_bandwidth(0.01) < 1e13

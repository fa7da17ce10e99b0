"""The byte floor of one stream."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.bench.floor import Floor, read_bandwidth


def test_the_best_sample_counts() -> None:
    floor = Floor(1000)
    assert floor.tokens_per_s is None
    floor.samples += [2e6, 5e6, 1e6]
    assert floor.tokens_per_s == pytest.approx(5000)


def test_memory_has_a_speed() -> None:
    assert 1e8 < read_bandwidth(0.01) < 1e13

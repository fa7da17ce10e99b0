"""The batches that vLLM captures, as its releases' sources list them."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.core.arithmetic.graph_sizes import vllm_capture_sizes

EIGHTS = (1, 2, 4, *range(8, 513, 8))
WIDE = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


@pytest.mark.parametrize(
    ("version", "slots", "expected"),
    [
        ("0.7.3", 3, (1, 2, 4)),
        ("0.7.3", 20, (1, 2, 4, 8, 16, 24)),
        ("0.9.2", 8, EIGHTS),
        ("0.10.0", 8, (1, 2, 4, 8, 16)),
        ("0.11.0", 1024, EIGHTS),
        ("0.11.1", 1024, WIDE),
        ("v0.20.0", 1024, WIDE),
        ("0.30.0", 12, (1, 2, 4, 8, 16, 24)),
        ("0.33.0", 12, (1, 2, 4, 8, 12, 16, 24)),
        ("0.33.0", 1024, WIDE),
    ],
)
def test_each_release_captures_its_own_sizes(version: str, slots: int, expected: tuple[int, ...]) -> None:
    assert vllm_capture_sizes(version, slots) == expected
    assert len(EIGHTS) == 67
    assert len(WIDE) == 51


@pytest.mark.parametrize(
    ("version", "told", "expected"),
    [
        ("0.19.0", {"limit": 6}, (1, 2, 4)),
        ("0.33.0", {"limit": 6}, (1, 2, 4)),
        ("0.33.0", {"limit": 0}, ()),
        ("0.33.0", {"sizes": (48, 1, 2, 2)}, (1, 2, 48)),
        ("0.33.0", {"sizes": (1, 2, 48), "max_num_batched_tokens": 30}, (1, 2)),
        ("0.20.0", {"max_num_batched_tokens": 12}, (1, 2, 4, 8)),
        ("0.20.2", {"max_num_batched_tokens": 12}, (1, 2, 4, 8, 12)),
    ],
)
def test_what_is_told_replaces_the_sizes(
    version: str, told: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert vllm_capture_sizes(version, 64, **told) == expected

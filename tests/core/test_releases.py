"""Releases as they are compared."""

from __future__ import annotations

import pytest

from camshaft.core.errors import ConfigError
from camshaft.core.releases import vllm_release


def test_a_version_is_numbers_and_dots() -> None:
    assert vllm_release("v0.8.5.post1") == (0, 8, 5)
    for text in ("newest", "", "33", "0.x"):
        with pytest.raises(ConfigError, match=r"form 0\.18\.0"):
            vllm_release(text)

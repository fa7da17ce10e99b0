"""From a configuration to the parts of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.core.config import load_config, resolve
from camshaft.core.serve.parts import parts_of


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAMSHAFT_API_KEY", "secret")
    parts = parts_of(resolve(load_config({"model": "m"})), tmp_path)
    assert parts.config.api_key == ("secret",)
    written = parts_of(resolve(load_config({"model": "m", "api_key": "mine"})), tmp_path)
    assert written.config.api_key == ("mine",)
    assert written.given["api_key"] == "(set)"

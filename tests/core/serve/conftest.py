"""Servers shared by the tests of a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# A tiny model gains nothing from a second thread, and loses much where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from serve_support import Running, running_server, write_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(model_folder: Path) -> Iterator[Running]:
    # Paced, so that a stream is seen token by token.
    with running_server(model_folder, {"step_s": 0.003}) as running:
        yield running


@pytest.fixture(scope="session")
def refusing(model_folder: Path) -> Iterator[Running]:
    """Its engine refuses prompts that start with token 7."""
    with running_server(model_folder, {"refuse_token": 7}) as running:
        yield running

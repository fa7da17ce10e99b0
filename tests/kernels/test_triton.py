"""Runs the Triton kernels through Triton's interpreter, in a process where it is switched on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a minute of one core, which a busy machine may stretch
def test_kernels_through_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/kernels/interpreted"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout

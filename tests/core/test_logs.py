"""Standard output is a command's answer: what is logged goes beside it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["core.schedule.guard", "core.recording.recorder"])
def test_a_warning_leaves_standard_output_alone(module: str) -> None:
    code = (
        f"import structlog\nimport camshaft.{module}\nstructlog.get_logger().warning('a fault', why='none')"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == ""
    assert "a fault" in said.stderr

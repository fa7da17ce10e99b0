"""The CPU kernels read no memory that was given back: the allocator overwrites it, and all is as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_decodes_have_the_same_bits_where_freed_memory_is_overwritten() -> None:
    """glibc does so where MALLOC_PERTURB_ is set; other C libraries take no notice."""
    file = Path(__file__).with_name("test_recorded.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        command, env={**os.environ, "MALLOC_PERTURB_": "60"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:]

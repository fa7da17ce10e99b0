"""These tests need Triton's interpreter, which must be switched on before Triton is imported.

They are collected only where it is; `tests/kernels/test_triton.py` runs them in a process of their own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # for the checks in tests/gpu
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.gpu.assembly import teach_interpreter

    teach_interpreter()

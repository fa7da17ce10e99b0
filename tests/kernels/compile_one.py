"""Run as a script by test_native.py: uses a compiled function and a worker, prints how much was compiled for it."""

from __future__ import annotations

import resource
import sys
import tempfile
from typing import Any

from numba.core import event

from camshaft.kernels.native.jit import jit, worker


def _refuse(**_: Any) -> Any:
    raise PermissionError(13, "nothing may be written here")


if "unwritable" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a full disk: no file can grow
    tempfile.TemporaryFile = _refuse


@jit()
def doubled(x: int) -> int:
    return 2 * x


with event.install_recorder("numba:compile") as recorder:
    assert doubled(4) == 8

    @worker
    def work(control: int, arguments: int) -> None:
        doubled(control + arguments)

    assert work.address
begun = [each for _, each in recorder.buffer if each.is_start]
print(len(begun) + (not work._cache_hits))

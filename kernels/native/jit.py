"""Numba's set-up: machine code kept between processes.

Machine code is cached under `$CAMSHAFT_CACHE` or the user's cache folder, in a folder named after the
kernels' own source text (Numba itself notices a change only in the file of the compiled function).
Where no such folder can be written, functions are compiled anew in each process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config as numba_config

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.cache
def cache_folder() -> Path | None:
    """Where machine code is kept, None if nowhere."""
    own, xdg = os.environ.get("CAMSHAFT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        if file.name == "cpu.py" or file.parent.name == "native":
            digest.update(file.read_bytes())
    try:
        root = Path(own).expanduser() if own else (Path(xdg) if xdg else Path.home() / ".cache") / "camshaft"
        folder = root / "numba" / digest.hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextlib.contextmanager
def _cache_here() -> Iterator[bool]:
    """Functions decorated inside keep their machine code in the folder above; says whether there is one."""
    folder, before = cache_folder(), numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder or "")
    try:
        yield folder is not None
    finally:
        numba_config.CACHE_DIR = before


def jit(**options: Any) -> Callable[[Function], Function]:
    """`numba.njit` with the cache above. Names are typed as the plain function's."""

    def decorate(function: Function) -> Function:
        with _cache_here() as cache:
            return numba.njit(cache=cache, nogil=True, error_model="numpy", **options)(function)

    return decorate


def worker(function: Callable[[int, int], None]) -> Any:
    """Compiles work for a team: a function of the addresses of its control block and its arguments."""
    with _cache_here() as cache:
        signature = numba.types.void(numba.types.int64, numba.types.int64)
        return numba.cfunc(signature, cache=cache, error_model="numpy")(function)

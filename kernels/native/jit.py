"""Numba's set-up: machine code kept between processes.

Machine code is cached under `$CAMSHAFT_CACHE` or the user's cache folder, in a folder named after the
kernels' own source text (Numba itself notices a change only in the file of the compiled function), Numba's
release and the processor. Starts at the same time may share it, for files are replaced whole; a folder that can
only be read is read, and where nothing can be kept, functions are compiled anew in each process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
from numba.core import config as numba_config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.ccallback import CFunc

from ..cache_folder import cache_root

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.cache
def cache_folder() -> Path | None:
    """Where machine code is kept, None if nowhere."""
    digest = hashlib.sha256(_target().encode())
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        if file.name.startswith("cpu") or file.parent.name == "native":
            digest.update(file.read_bytes())
    try:
        folder = cache_root() / "numba" / digest.hexdigest()[:16]
    except RuntimeError:  # no home
        return None
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK) else None


def _target() -> str:
    """Numba's release and the processor it compiles for."""
    name = numba_config.CPU_NAME or llvmlite.binding.get_host_cpu_name()  # pyright: ignore[reportAttributeAccessIssue]
    told = numba_config.CPU_FEATURES  # pyright: ignore[reportAttributeAccessIssue]
    features = told if told is not None else llvmlite.binding.get_host_cpu_features().flatten()
    return f"{numba.__version__} {llvmlite.__version__} {name} {features}"


class _Locator(UserProvidedCacheLocator):
    def ensure_cache_path(self) -> None:
        with contextlib.suppress(OSError):  # what cannot be written may still be read
            super().ensure_cache_path()


class _CompiledFiles(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (Numba's own form)


class _KernelCache(FunctionCache):
    """Numba's, but a damaged file counts as none and a full disk is no error."""

    _impl_class = _CompiledFiles

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling what was cut off fails in many ways
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


@contextlib.contextmanager
def _cache_here() -> Iterator[bool]:
    """Functions decorated inside keep their machine code in the folder above; says whether there is one."""
    folder, settings = cache_folder(), cast("Any", numba_config)
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder or "")
    try:
        yield folder is not None
    finally:
        settings.CACHE_DIR = before


def jit(**options: Any) -> Callable[[Function], Function]:
    """`numba.njit` with the cache above. Names are typed as the plain function's."""

    def decorate(function: Function) -> Function:
        compiled: Any = numba.njit(nogil=True, error_model="numpy", **options)(function)
        with _cache_here() as cache:
            if cache:
                compiled._cache = _KernelCache(function)  # as `cache=True` does with Numba's own
        return compiled

    return decorate


def worker(function: Callable[[int, int], None]) -> Any:
    """Compiles work for a team: a function of the addresses of its control block and its arguments."""
    address = numba.types.int64
    compiled: Any = CFunc(function, ((address, address), numba.types.void), {}, {"error_model": "numpy"})
    with _cache_here() as cache:
        if cache:
            compiled._cache = _KernelCache(function)
        compiled.compile()
    return compiled

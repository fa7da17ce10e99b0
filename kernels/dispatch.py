"""Which implementation of an op runs: by device and dtype, found once and remembered.

An op is a folder: `__init__.py` holds its one signature, `reference.py` plain torch that runs
anywhere, and beside it whichever faster ones exist: `cpu.py` (Numba, float32) and `triton.py` (CUDA). Where torch's
own way is not for comparison alone but what a GPU is served with, it has a name that says so.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch


@functools.cache
def has_numba() -> bool:
    """Whether Numba is installed, which the implementations for a CPU are compiled with."""
    return find_spec("numba") is not None


class Dispatch:
    """Callable that gives the best function called `name` in `package` for a tensor."""

    def __init__(self, package: str, name: str, otherwise: str = "reference") -> None:
        self._package, self._name, self._otherwise = package, name, otherwise
        self._known: dict[tuple[bool, torch.dtype], Callable[..., Any]] = {}

    def __call__(self, x: torch.Tensor) -> Callable[..., Any]:
        key = (x.is_cuda, x.dtype)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._load(*key)
        return found

    def _load(self, is_cuda: bool, dtype: torch.dtype) -> Callable[..., Any]:
        faster = "triton" if is_cuda else "cpu" if dtype == torch.float32 else self._otherwise
        compiler = {"triton": find_spec("triton") is not None, "cpu": has_numba()}.get(faster, True)
        present = compiler and find_spec(f"{self._package}.{faster}") is not None
        module = importlib.import_module(f"{self._package}.{faster if present else self._otherwise}")
        return getattr(module, self._name)

"""Which variants of the kernels a run would compile on a GPU, found on the CPU.

Triton compiles a kernel anew for each type, alignment and compile-time constant of its arguments. Here every launch
is keyed as Triton's own launcher does it, and the reference computes what the kernel would have.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit

from camshaft.kernels.dispatch import Dispatch

FACTORIES = ("make_experts", "make_mxfp4_experts")  # of what the reference would loop over
SLOW = ("paged_attention",)  # whose results matter to no launch


class Variants:
    """Keys of launches by kernel, from `install` on."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.launches = 0
        self._backend = make_backend(GPUTarget("cuda", 90, 32))
        self._binders: dict[Any, Callable[..., Any]] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Every op takes its Triton version, which launches nothing, and then its reference."""
        variants = self

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            variants.record(kernel, args, kwargs)

        def call(op: Dispatch, x: Any) -> Callable[..., Any] | None:
            reference = function_of(op, op._otherwise)
            faster = function_of(op, "triton")
            if faster is None or op._name in (*FACTORIES, *SLOW):
                return faster or reference
            assert reference is not None

            def both(*args: Any, **kwargs: Any) -> None:
                faster(*args, **kwargs)
                reference(*args, **kwargs)

            return both

        patch.setattr(jit.JITFunction, "run", run)
        patch.setattr(Dispatch, "__call__", call)

    def record(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Of one launch."""
        binder = self._binders.get(kernel)
        if binder is None:
            binder = jit.create_function_from_signature(kernel.signature, kernel.params, self._backend)
            self._binders[kernel] = binder
        _, specialization, options = binder(*args, **kwargs)
        self.launches += 1
        named = zip(kernel.arg_names, specialization, strict=True)
        self.seen.add((kernel.__name__, f"{[f'{n}={s}' for n, s in named]} {options}"))


def function_of(op: Dispatch, room: str) -> Callable[..., Any] | None:
    """The op's implementation in a module of its folder; None where it has none there."""
    name = f"{op._package}.{room}"
    return getattr(importlib.import_module(name), op._name) if importlib.util.find_spec(name) else None

"""Teaches Triton's interpreter the few PTX instructions that a kernel has inline, and what NumPy no longer does for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "and.b32": lambda a, b: a & b,
    "shl.b32": lambda a, b: a << b,
    "shr.b32": lambda a, b: a >> b,
    "lop3.b32": lambda a, b, c, table: _lookup(a, b, c, int(table)),
}


def _lookup(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    """Bit by bit the entry of the table at a, b, c (PTX ISA, `lop3`)."""
    out = np.zeros_like(a)
    for entry in range(8):
        if table >> entry & 1:
            out |= (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
    return out


def execute(assembly: str, inputs: Sequence[np.ndarray], num_outputs: int) -> list[np.ndarray]:
    """Registers 0 to num_outputs - 1 after it, the inputs, uint32, being those behind them."""
    held: dict[str, Any] = {f"${num_outputs + i}": words for i, words in enumerate(inputs)}
    body = re.sub(r"^\s*\{\s*\.reg [^;]*;|\}\s*$", "", assembly)
    for line in filter(None, map(str.strip, body.split(";"))):
        name, target, *sources = re.split(r"[\s,]+", line)
        values = [held[s] if s in held else np.uint32(int(s, 0)) for s in sources]
        held[target] = _ARITHMETIC[name](*values)
    return [held[f"${i}"] for i in range(num_outputs)]


def teach_interpreter() -> None:
    """Lets kernels whose assembly packs four bytes into a register run without a GPU, and bounds of loops be tensors:
    Triton 3.6 keeps a scalar as an array of one, which NumPy 2.5 no longer takes for an integer.
    """
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    class Results(list[Any]):
        get_result = list[Any].__getitem__

    def create_inline_asm(
        self: Any, assembly: str, constraints: str, values: list[Any], types: list[Any], pure: bool, pack: int
    ) -> Results:
        (packed,) = values
        assert (pack, packed.data.itemsize, pure) == (4, 1, True)
        count = constraints.count("=")
        assert constraints == ",".join(["=&r"] * count + ["r"])  # outputs are written before inputs are read
        words = execute(assembly, [np.ascontiguousarray(packed.data).view(np.uint32)], count)
        registers = count // len(types)
        results = Results()
        for i, wanted in enumerate(types):
            mine = np.stack(words[i * registers : (i + 1) * registers], axis=-1)
            kind = (
                np.float16
                if wanted.scalar.primitive_bitwidth == 16 and wanted.scalar.is_fp16()
                else np.uint16
            )
            results.append(TensorHandle(mine.view(kind).reshape(packed.data.shape), wanted.scalar))
        return results

    setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm)  # noqa: B010 (under names of its own)
    patch = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_lang_tensor

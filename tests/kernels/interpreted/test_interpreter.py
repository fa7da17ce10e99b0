"""What the interpreter must do whichever versions of Triton and NumPy are installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from triton.runtime import interpreter


class NoNumber(np.ndarray):
    """NumPy 2.5 makes no number of an array of one dimension, whatever its size; this one of none at all."""

    def __int__(self) -> int:
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")


def test_an_array_of_one_is_an_index() -> None:
    held: dict[str, Any] = {}
    scope = SimpleNamespace(set_attr=lambda tensor, name, value: held.update({name: value}))
    interpreter._patch_lang_tensor(object(), scope)  # pyright: ignore[reportArgumentType]
    data = np.array([3]).view(NoNumber)
    assert held["__index__"](SimpleNamespace(handle=SimpleNamespace(data=data))) == 3

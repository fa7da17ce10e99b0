"""What flows past the layers of a decoder, and who adds the layers' results to it."""

from __future__ import annotations

from typing import Any

import torch

from ...kernels.linear import InputNorm, Linear
from ...kernels.linear.dense import DenseLinear
from ...kernels.linear.fp8 import Fp8Linear
from ...kernels.rms_norm import rms_norm

# Layers that add an owed sum while they read their input.
_FUSED = (Fp8Linear, DenseLinear)


class Residual:
    """hidden [T, hidden_size], contiguous, and at most one product that is still to be added to it.

    Most products add their result themselves. One in FP8 cannot; its result waits for whoever reads hidden
    next and normalises it, so that both take one pass over memory.
    """

    __slots__ = ("_owed", "hidden")

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden
        self._owed: torch.Tensor | None = None

    def add(self, layer: Linear, x: torch.Tensor) -> None:
        """Adds the layer's product with x, now or by the next read."""
        if isinstance(layer, Fp8Linear):
            self.owe(layer(x))
        else:
            layer(x, self.settled(), accumulate=True)

    def owe(self, product: torch.Tensor) -> None:
        """Takes over a product of hidden's size, which the next read adds."""
        self.settled()
        self._owed = product

    def read(self, layer: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """The layer's product with all that has been added so far; its norm belongs to it."""
        if self._owed is None:
            return layer(self.hidden, out)
        if not isinstance(layer, _FUSED):
            return layer(self.settled(), out)
        owed, self._owed = self._owed, None
        return layer(self.hidden, out, added=owed)

    def normed(self, norm: InputNorm) -> torch.Tensor:
        """RMSNorm of all that has been added so far."""
        owed, self._owed = self._owed, None
        return rms_norm(self.hidden, norm.weight, norm.eps, added=owed)

    def settled(self) -> torch.Tensor:
        """hidden with everything added; may be added to in place."""
        if self._owed is not None:
            self.hidden += self._owed
            self._owed = None
        return self.hidden

    def keep(self, rows: torch.Tensor) -> None:
        """Drops every row but the given ones, int64 [m]."""
        self.hidden = self.hidden.index_select(0, rows)
        if self._owed is not None:
            self._owed = self._owed.index_select(0, rows)

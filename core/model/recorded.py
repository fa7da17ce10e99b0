"""Decode steps on a host, written down as one program a batch size: no Python runs between their layers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..arithmetic.shape import ModelShape
from .batch import ForwardBatch, PagedCache
from .layers import Buffers, Workspace

if TYPE_CHECKING:
    from ...kernels.native.team import Program

Layers = Callable[[ForwardBatch, PagedCache, torch.Tensor, Buffers, torch.Tensor], object]


class DecodePrograms:
    """Recorded passes from hidden states to logits, by batch size and by where the batch's tensors lie.

    A batch whose tensors lie elsewhere than the last one's of its size is recorded anew.
    """

    def __init__(self, shape: ModelShape, layers: Layers) -> None:
        """`layers(batch, cache, hidden, buffers, logits)` computes logits [n, vocab_size] from hidden
        [n, hidden_size], which it overwrites.
        """
        self._layers = layers
        self._widths = shape.hidden_size, shape.vocab_size
        self._workspace = Workspace(shape, torch.device("cpu"), torch.float32)
        self._ends = [torch.empty(0), torch.empty(0)]  # storage of hidden states and logits
        self._rows = 0  # that there is storage for
        self._cache: Callable[[], PagedCache | None] = lambda: None
        self._recorded: dict[int, _Recorded] = {}

    def run(self, batch: ForwardBatch, cache: PagedCache, embedded: torch.Tensor) -> torch.Tensor | None:
        """Logits of a batch with `decodes_only`, from its tokens' embeddings; the next run overwrites them.

        None if the pass does not consist of the kernels' jobs alone: then nothing has been computed.
        """
        count = len(embedded)
        if self._cache() is not cache or count > self._rows:
            self._start_over(cache, count)
        recorded, places = self._recorded.get(count), _places(batch)
        if recorded is None or recorded.places != places:
            recorded = self._record(batch, cache, places)
            if recorded is None:
                return None
            self._recorded[count] = recorded
        recorded.hidden.copy_(embedded)
        recorded.program.run()
        return recorded.logits

    def _start_over(self, cache: PagedCache, rows: int) -> None:
        """Forgets every program; there will be room for so many rows, and for some more."""
        self._recorded.clear()
        self._cache = weakref.ref(cache)
        if rows > self._rows:
            self._rows = max(rows, 2 * self._rows)
            self._workspace(self._rows)
            self._ends = [torch.zeros(self._rows * width) for width in self._widths]

    def _record(self, batch: ForwardBatch, cache: PagedCache, places: tuple[int, ...]) -> _Recorded | None:
        from ...kernels.native.team import record

        count = places[0]
        hidden, logits = (
            storage[: count * width].view(count, width)
            for storage, width in zip(self._ends, self._widths, strict=True)
        )
        buffers, watch = self._workspace(count), _Watch()

        def layers() -> None:
            with watch:
                self._layers(batch, cache, hidden, buffers, logits)

        program = record(layers)
        return None if watch.seen else _Recorded(places, hidden, logits, program)


@dataclass(slots=True)
class _Recorded:
    """One program, and where it begins and ends."""

    places: tuple[int, ...]
    hidden: torch.Tensor
    logits: torch.Tensor
    program: Program


class _Watch(TorchDispatchMode):
    """Notices whether torch computes anything."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen = True
        return func(*args, **(kwargs or {}))


def _places(batch: ForwardBatch) -> tuple[int, ...]:
    """What of a batch a program holds: its size, and where its tensors lie."""
    return (
        len(batch.positions),
        batch.positions.data_ptr(),
        batch.slots.data_ptr(),
        batch.query_starts.data_ptr(),
        batch.context_lens.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.block_tables.stride(0),
    )

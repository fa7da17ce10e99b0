"""From a name to tensors: where a model lies, and its weights under their Hugging Face names.

`hub.locate(name)` gives a folder, `open_weights(folder)` a weight source over it. Nothing here runs a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...errors import ModelError

if TYPE_CHECKING:
    from ..base import WeightSource

    class FileWeights(WeightSource, Protocol):
        """A weight source over files."""

        def file_of(self, name: str) -> Path:
            """The file that holds a tensor. Raises ModelError if none does."""
            ...


GGUF_IN_FOLDER = "model.gguf"  # `hub` lays a GGUF file under this name beside its config and tokenizer


def open_weights(path: str | Path) -> FileWeights:
    """Weight source over a model folder or a `.gguf` file; memory-mapped, nothing is read yet.

    Raises ModelError when there are no weights, or a file is missing, truncated or corrupt.
    """
    where = Path(path)
    if where.suffix == ".gguf" or (where / GGUF_IN_FOLDER).exists():
        from .gguf import GgufWeights

        return GgufWeights(where if where.suffix == ".gguf" else where / GGUF_IN_FOLDER)
    if not where.is_dir():
        raise ModelError(f"{where}: no such model folder")
    from .safetensors import SafetensorsWeights

    return SafetensorsWeights(where)

"""Weights from safetensors files: one file, or shards with an index; mapped, never read as a whole.

A tensor that `get` returns lies on the mapping of its file: pages come from the page cache when they
are first touched, and there is no second copy. File format: github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from ...errors import ModelError
from ...json_files import read_json

if TYPE_CHECKING:
    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """Weight source over a folder; every header is checked when it opens. Raises ModelError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        listed = _listed(folder)
        for file in dict.fromkeys(listed.values()) if listed else _unlisted(folder):
            self._open[file] = _open_checked(file)
            if not listed:
                self._file_of.update(dict.fromkeys(self._open[file].keys(), file))
        for name, file in listed.items():
            if name not in self._open[file].keys():  # noqa: SIM118 - a safetensors handle is no mapping
                raise ModelError(f"{file}: tensor {name!r} is missing, though {INDEX} places it here")
            self._file_of[name] = file

    def names(self) -> Iterable[str]:
        return self._file_of.keys()

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor. Raises ModelError naming the nearest names if none does."""
        file = self._file_of.get(name)
        if file is None:
            near = difflib.get_close_matches(name, self._file_of, n=2)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise ModelError(f"{self.folder}: no tensor {name!r} in its safetensors files{hint}")
        return file

    def get(self, name: str) -> torch.Tensor:
        """The tensor on the CPU in its own dtype, lying on the file's mapping (not to be written)."""
        file = self.file_of(name)
        try:
            return self._open[file].get_tensor(name)
        except (SafetensorError, RuntimeError, OSError, ValueError) as error:
            raise ModelError(f"{file}: tensor {name!r} is unreadable: {error}") from error


def _listed(folder: Path) -> dict[str, Path]:
    """Tensor to file, as the index says; empty without an index."""
    index = folder / INDEX
    if not index.exists():
        return {}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: has no weight_map")
    files: dict[str, Path] = {}
    for name, shard in weight_map.items():
        # A shard is a plain file name; anything else could point outside the folder.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{index}: tensor {name!r} names an unusable file {shard!r}")
        files[name] = folder / shard
    missing = sorted({file.name for file in files.values() if not file.is_file()})
    if missing:
        count = len({file.name for file in files.values()})
        first = next(name for name, file in files.items() if file.name == missing[0])
        raise ModelError(
            f"{folder}: {len(missing)} of {count} shards missing: {', '.join(missing[:4])}"
            f" (tensor {first!r} and others); fetch the model again"
        )
    return files


def _unlisted(folder: Path) -> list[Path]:
    single = folder / SINGLE
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        other = sorted(p.name for p in folder.glob("*.bin")) or sorted(p.name for p in folder.glob("*.pt*"))
        hint = f"; {other[0]} is a pickle, which is not loaded" if other else ""
        raise ModelError(f"{folder}: no {SINGLE} and no {INDEX}{hint}")
    return files


def _open_checked(file: Path) -> Any:
    if not file.is_file():  # opening a pipe would wait for ever
        raise ModelError(f"{file}: is no file")
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{file}: {_diagnosis(file) or f'not a usable safetensors file: {error}'}"
        ) from error


def _diagnosis(file: Path) -> str:
    """What is wrong with a file that did not open, naming the first tensor it lacks; empty if unknown."""
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            header_bytes = int.from_bytes(handle.read(8), "little")
            if header_bytes + 8 > size:
                return f"truncated within its header ({size} bytes)"
            header = json.loads(handle.read(header_bytes))
        spans = [(v["data_offsets"][1], k) for k, v in header.items() if k != "__metadata__"]
        lost = sorted((end, name) for end, name in spans if 8 + header_bytes + end > size)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, MemoryError, RecursionError):
        return ""
    if not lost:
        return ""
    expected = 8 + header_bytes + max(end for end, _ in lost)
    return f"truncated: {size} of {expected} bytes; tensor {lost[0][1]!r} is the first of {len(lost)} cut off"

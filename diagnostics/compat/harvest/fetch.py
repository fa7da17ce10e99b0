"""Fetches the sources of a release and unpacks what the harvester reads; nothing fetched is ever run or built."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from .errors import HarvestError
from .index import Index, RemoteFile, pick, pip_settings

MAX_FILE_BYTES = 20 << 20
MAX_TOTAL_BYTES = 500 << 20
BLOCK_BYTES = 1 << 20

# Called with (bytes so far, bytes in all or 0).
Progress = Callable[[int, int], None]


def fetch_release(project: str, version: str, into: Path, progress: Progress) -> RemoteFile:
    """Fetch a release's sdist (its wheel where there is none) and unpack its package under `into`.

    Returns the file it came from. Raises HarvestError without a network, UnknownVersion for a release the index lacks.
    """
    index = Index(pip_settings())
    file = pick(index.files(project), project, version)
    if file.name.endswith(".whl"):
        # A wheel can hold half a gigabyte of binaries: only the parts that are read are asked for.
        with io.BufferedReader(RangedFile(index, file.url, progress), BLOCK_BYTES) as remote:
            _unpack_zip(remote, project, into)
    else:
        archive = into / "archive.tar.gz"
        _download(index, file, archive, progress)
        unpack(archive, project, into)
        archive.unlink()
    return file


def unpack(archive: Path, project: str, into: Path) -> None:
    """Unpack the package's Python sources from an sdist or a wheel. Raises HarvestError when it is neither."""
    try:
        if zipfile.is_zipfile(archive):
            with archive.open("rb") as file:
                _unpack_zip(file, project, into)
        else:
            _unpack_tar(archive, project, into)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise HarvestError(f"{archive.name} cannot be unpacked: {error}") from error


def _unpack_tar(archive: Path, project: str, into: Path) -> None:
    budget = _Budget()
    with tarfile.open(archive) as tar:
        for member in tar:
            target = _target(member.name, project, strip=1)
            if target is None or not member.isfile():
                continue
            budget.take(member.name, member.size)
            content = tar.extractfile(member)
            if content is not None:
                _write(into / target, content.read(MAX_FILE_BYTES))


def _unpack_zip(file: IO[bytes], project: str, into: Path) -> None:
    budget = _Budget()
    with zipfile.ZipFile(file) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
            target = _target(info.filename, project, strip=0) or _target(info.filename, project, strip=1)
            if target is None or info.is_dir():
                continue
            budget.take(info.filename, info.file_size)
            with archive.open(info) as content:
                _write(into / target, content.read(MAX_FILE_BYTES))


def _target(name: str, project: str, strip: int) -> PurePosixPath | None:
    """Where a member goes, or None when it is not wanted: only the package's own `.py` files, and none by a way up."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or path.suffix != ".py":
        return None
    parts = path.parts[strip:]
    return PurePosixPath(*parts) if len(parts) > 1 and parts[0] == project.replace("-", "_") else None


class _Budget:
    """Refuses an archive that unpacks to more than a release can be."""

    def __init__(self) -> None:
        self._left = MAX_TOTAL_BYTES

    def take(self, name: str, size: int) -> None:
        self._left -= size
        if size > MAX_FILE_BYTES or self._left < 0:
            raise HarvestError(f"{name} is larger than a release's source can be; nothing was added")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _download(index: Index, file: RemoteFile, into: Path, progress: Progress) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    done = 0
    try:
        with index.open(file.url) as response, into.open("wb") as out:
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(BLOCK_BYTES):
                out.write(block)
                digest.update(block)
                done += len(block)
                progress(done, total)
    except OSError as error:
        raise HarvestError(f"{file.name} broke off after {done} bytes: {error}") from error
    if file.sha256 is not None and digest.hexdigest() != file.sha256:
        raise HarvestError(
            f"{file.name} is not the file the index lists (SHA-256 differs); nothing was added"
        )


class RangedFile(io.RawIOBase):
    """A remote file read by ranges, so that a few members of a large wheel cost a few megabytes."""

    def __init__(self, index: Index, url: str, progress: Progress) -> None:
        super().__init__()
        self._index = index
        self._url = url
        self._progress = progress
        self._position = 0
        self._fetched = 0
        self._blocks: dict[int, bytes] = {}
        with index.open(url, {"Range": "bytes=0-0"}) as response:
            span = response.headers.get("Content-Range", "")
        if "/" not in span:
            raise HarvestError(
                "this release has only wheels, and the index serves no ranges of them; use --source"
            )
        self._size = int(span.rsplit("/", 1)[1])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        number, start = divmod(self._position, BLOCK_BYTES)
        if self._position >= self._size:
            return 0
        part = self._block(number)[start : start + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            if len(self._blocks) > 32:
                self._blocks.pop(next(iter(self._blocks)))
            last = min(self._size, (number + 1) * BLOCK_BYTES) - 1
            with self._index.open(self._url, {"Range": f"bytes={number * BLOCK_BYTES}-{last}"}) as response:
                self._blocks[number] = response.read(BLOCK_BYTES)
            self._fetched += len(self._blocks[number])
            self._progress(self._fetched, 0)
        return self._blocks[number]

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from camshaft.core.errors import CamshaftError
from camshaft.diagnostics.compat.harvest.errors import HarvestError
from camshaft.diagnostics.compat.harvest.fetch import MAX_FILE_BYTES, unpack


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]], path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


def test_only_the_package_s_own_sources_are_unpacked_and_nothing_leaves_the_folder(tmp_path: Path) -> None:
    archive = tar_of(
        [
            (member("vllm-1.0/vllm/ok.py"), b"x = 1"),
            (member("vllm-1.0/vllm/../../../escaped.py"), b"bad"),
            (member("/vllm/vllm/absolute.py"), b"bad"),
            (member("vllm-1.0/setup.py"), b"raise SystemExit"),
            (member("vllm-1.0/vllm/native.so"), b"bad"),
            (member("vllm-1.0/vllm/link.py", tarfile.SYMTYPE, "/etc/passwd"), b""),
            (member("vllm-1.0/vllm/hard.py", tarfile.LNKTYPE, "../../../../etc/passwd"), b""),
        ],
        tmp_path / "r.tar.gz",
    )
    into = tmp_path / "deep" / "into"
    unpack(archive, "vllm", into)
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.py")] == ["deep/into/vllm/ok.py"]


def test_a_wheel_is_unpacked_by_the_same_rules(tmp_path: Path) -> None:
    archive = tmp_path / "r.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("vllm/ok.py", "x = 1")
        wheel.writestr("vllm/../../escaped.py", "bad")
        wheel.writestr("other/no.py", "bad")
    unpack(archive, "vllm", tmp_path / "deep" / "into")
    assert [p.name for p in tmp_path.rglob("*.py")] == ["ok.py"]


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    archive = tar_of([(member("vllm-1.0/vllm/big.py"), b"#" * (MAX_FILE_BYTES + 1))], tmp_path / "r.tar.gz")
    with pytest.raises(HarvestError, match="larger"):
        unpack(archive, "vllm", tmp_path / "into")


@pytest.mark.parametrize("data", [b"", b"not an archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_archive_is_an_error_of_the_user_s(tmp_path: Path, data: bytes) -> None:
    archive = tmp_path / "r.tar.gz"
    archive.write_bytes(data)
    with pytest.raises(CamshaftError, match="cannot be unpacked"):
        unpack(archive, "vllm", tmp_path / "into")

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from camshaft.diagnostics.compat.harvest.errors import HarvestError
from camshaft.diagnostics.compat.harvest.fetch import fetch_release
from camshaft.diagnostics.compat.harvest.index import RemoteFile, pick, pip_settings
from camshaft.diagnostics.compat.releases.versions import UnknownVersion


def sdist(version: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in {"vllm/a.py": "x = 1\n", "setup.py": "raise SystemExit\n"}.items():
            info = tarfile.TarInfo(f"vllm-{version}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def wheel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("vllm/native.so", bytes(5 << 20))
        archive.writestr("vllm/a.py", "x = 2\n")
    return out.getvalue()


FILES = {
    "vllm-1.0.0.tar.gz": sdist("1.0.0"),
    "vllm-1.0.0-cp38-abi3-manylinux_2_31_x86_64.whl": wheel(),
    "vllm-1.1.0-cp38-abi3-manylinux_2_31_aarch64.whl": wheel(),
    "vllm-1.1.0-cp38-abi3-manylinux_2_31_x86_64.whl": wheel(),
    "vllm-1.2.0.tar.gz": sdist("1.2.0"),
}


class Index(BaseHTTPRequestHandler):
    """A simple index over `FILES`, as JSON below /simple and as HTML below /html; 1.2.0's hash is wrong."""

    sent = 0

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        name = path.rsplit("/", 1)[-1]
        if path == "/simple/vllm/":
            rows = [
                {"filename": n, "url": f"/files/{n}", "hashes": {"sha256": self.digest(n)}} for n in FILES
            ]
            self.answer(json.dumps({"files": rows}).encode(), "application/vnd.pypi.simple.v1+json")
        elif path == "/html/vllm/":
            links = "".join(f'<a href="../../files/{n}#sha256={self.digest(n)}">{n}</a>' for n in FILES)
            self.answer(f"<html>{links}</html>".encode(), "text/html")
        elif path == "/broken/vllm/":
            self.answer(b"[1, 2", "application/vnd.pypi.simple.v1+json")
        elif name in FILES:
            self.answer(FILES[name], "application/octet-stream")
        else:
            self.send_error(404)

    @staticmethod
    def digest(name: str) -> str:
        return "0" * 64 if "1.2.0" in name else hashlib.sha256(FILES[name]).hexdigest()

    def answer(self, data: bytes, kind: str) -> None:
        asked = self.headers.get("Range")
        self.send_response(206 if asked else 200)
        if asked:
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            data = data[first : last + 1]
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        Index.sent += len(data)
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")


@pytest.mark.parametrize("kind", ["simple", "html"])
def test_an_sdist_is_fetched_from_pip_s_index_and_unpacked(
    server: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{server}/{kind}")
    told: list[tuple[int, int]] = []
    file = fetch_release("vllm", "1.0.0", tmp_path, lambda done, total: told.append((done, total)))
    assert file.name == "vllm-1.0.0.tar.gz"
    assert (tmp_path / "vllm" / "a.py").read_text() == "x = 1\n"
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a.py"]
    assert told[-1] == (len(FILES[file.name]), len(FILES[file.name]))


def test_of_a_wheel_only_the_parts_that_are_read_are_fetched(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{server}/simple")
    before = Index.sent
    file = fetch_release("vllm", "1.1.0", tmp_path, lambda done, total: None)
    assert "x86_64" in file.name
    assert (tmp_path / "vllm" / "a.py").read_text() == "x = 2\n"
    assert Index.sent - before < len(FILES[file.name]) / 2


def test_a_file_that_is_not_the_one_listed_is_refused(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{server}/simple")
    with pytest.raises(HarvestError, match="SHA-256"):
        fetch_release("vllm", "1.2.0", tmp_path, lambda done, total: None)
    assert not list(tmp_path.rglob("*.py"))


def test_a_release_that_the_index_lacks_is_refused(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{server}/simple")
    with pytest.raises(UnknownVersion, match=r"no vllm 1\.0\.1; its newest is \d"):
        fetch_release("vllm", "1.0.1", tmp_path, lambda done, total: None)


@pytest.mark.parametrize("path", ["broken", "nothing"])
def test_an_index_that_answers_nonsense_is_an_error_of_the_user_s(
    server: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{server}/{path}")
    with pytest.raises(HarvestError, match=r"no file list|404"):
        fetch_release("vllm", "1.0.0", tmp_path, lambda done, total: None)


def test_without_a_network_the_error_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    with pytest.raises(HarvestError, match="--source") as caught:
        fetch_release("vllm", "1.0.0", tmp_path, lambda done, total: None)
    assert "secret" not in str(caught.value)


def test_pip_s_own_default_is_used_when_nothing_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert pip_settings().urls[0].startswith("https://")
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = http://mirror.example/simple\ncert = /etc/own.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_CERT", raising=False)
    assert pip_settings().urls[0] == "http://mirror.example/simple"
    assert pip_settings().certificates == "/etc/own.pem"


def test_a_release_is_told_from_its_post_release_and_its_local_builds() -> None:
    names = [
        "vllm-1.0.0+cu118-cp38-abi3-x.whl",
        "vllm-1.0.0.post1.tar.gz",
        "vllm-1.0.0-cp38-abi3-x.whl",
        "vllm_x-1.0.0.tar.gz",
    ]
    files = [RemoteFile(name, f"https://host.example/{name}", None) for name in names]
    assert pick(files, "vllm", "1.0.0").name == "vllm-1.0.0-cp38-abi3-x.whl"
    assert pick(files, "vllm", "1.0.0.post1").name == "vllm-1.0.0.post1.tar.gz"

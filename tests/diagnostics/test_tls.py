"""Servers with a certificate that no usual authority has signed: a file of certificates makes them trusted."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest

from camshaft.cli.explain import explain
from camshaft.core.errors import CamshaftError
from camshaft.core.workload import load_workload
from camshaft.diagnostics.bench.url import Target, drive_url
from camshaft.diagnostics.evidence.prometheus import scrape

CERTIFICATE = Path(__file__).parent / "data" / "localhost.pem"  # signed by itself, with its key
LOAD = {
    "arrival": {"kind": "closed", "concurrency": 1, "requests": 1},
    "input_tokens": 4,
    "output_tokens": 1,
}


class Nothing(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self.send_error(404)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Nothing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def ask(url: str) -> None:
    explain.main(["hello", "--url", url], standalone_mode=False)


def bench(url: str) -> None:
    drive_url(Target(url=url), load_workload(LOAD))


def metrics(url: str) -> None:
    scrape(f"{url}/metrics")


@pytest.mark.parametrize("client", [ask, bench, metrics])
def test_a_file_of_certificates_makes_a_server_trusted(
    client: Callable[[str], None], url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def told() -> str:
        with pytest.raises((CamshaftError, click.ClickException)) as caught:
            client(url)
        return str(caught.value)

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert "SSL_CERT_FILE=FILE trusts a certificate" in told()
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    assert "404" in told()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert "SSL_CERT_FILE: not a file of certificates" in told()

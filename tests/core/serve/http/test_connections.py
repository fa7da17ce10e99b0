"""Clients that take their time: what one connection may cost is bounded in bytes and in time."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from serve_support import Running, eventually

from camshaft.core.serve.http.protocol import MAX_PIPELINED, PIECE_BYTES, BoundedHttpProtocol

COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": "ab", "temperature": 0, "ignore_eos": True, "max_tokens": 250}
LAST = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def alive_afterwards(server: Running) -> Iterator[None]:
    yield
    assert server.get("/health").status_code == 200


@contextlib.contextmanager
def connection(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as line:
        line.settimeout(60)
        yield line


def post(body: dict[str, Any], version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def all_of(line: socket.socket) -> bytes:
    """What the other side says until it closes."""
    said = b""
    while piece := line.recv(65536):
        said += piece
    return said


def generated(server: Running) -> int:
    return server.get("/debug/stats").json()["generation_tokens"]


def trickle(line: socket.socket, drop: bytes) -> bytes:
    """Sends `drop` now and then until the other side closes; what it said by then."""
    said = b""
    line.settimeout(0.02)
    for _ in range(3000):
        try:
            if drop:
                line.sendall(drop)
            piece = line.recv(65536)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return said
        if not piece:
            return said
        said += piece
    raise AssertionError("the connection was left open")


def test_a_body_that_never_comes_ends_the_connection(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("camshaft.core.serve.http.body.BODY_TIMEOUT_S", 0.1)
    with connection(server) as line:
        line.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{".encode())
        answer = trickle(line, b" ")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"\r\nconnection: close\r\n" in answer.lower()


@pytest.mark.parametrize(
    "begins",
    [b"GET /", b"GET /health HTTP/1.1\r\nHost: x\r\n", b"GET /health HTTP/1.1\r\nA: " + b"x" * 5000],
)
def test_a_head_that_trickles(server: Running, monkeypatch: pytest.MonkeyPatch, begins: bytes) -> None:
    monkeypatch.setattr("camshaft.core.serve.http.protocol.HEAD_TIMEOUT_S", 0.1)
    with connection(server) as line:
        line.sendall(begins)
        answer = trickle(line, b"x")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body)["error"]["type"] == "RequestTimeoutError"


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
@pytest.mark.parametrize("drop", [b"", b"\r\n"])
def test_a_connection_that_says_nothing_is_closed(
    server: Running, monkeypatch: pytest.MonkeyPatch, before: bytes, drop: bytes
) -> None:
    """Also after a request, and if empty lines keep it awake."""
    monkeypatch.setattr("camshaft.core.serve.http.protocol.HEAD_TIMEOUT_S", 0.1)
    with connection(server) as line:
        line.sendall(before)
        if before:
            assert line.recv(4096).startswith(b"HTTP/1.1 200")
            line.sendall(b"\r\n")
        assert trickle(line, drop) == b""


def test_the_rest_of_a_refused_body_is_not_waited_for(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("camshaft.core.serve.http.protocol.LINGER_S", 0.1)
    with connection(server) as line:
        line.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
        answer = trickle(line, b"x")
    assert answer.startswith(b"HTTP/1.1 404")


def test_the_bound_on_a_head_ends_with_the_head(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.core.serve.http.protocol.HEAD_TIMEOUT_S", 0.5)
    body = json.dumps({"prompt": "ok", "temperature": 0}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with connection(server) as line:
        line.sendall(head + body[:5])
        line.settimeout(1.0)  # twice the bound
        with pytest.raises(TimeoutError):
            line.recv(1)
        line.settimeout(60)
        line.sendall(body[5:])
        assert line.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begins", [b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\nA: "])
def test_a_head_without_end(server: Running, begins: bytes) -> None:
    with connection(server) as line:
        line.sendall(begins)
        with contextlib.suppress(OSError):  # refused while we still send
            for _ in range(64):
                line.sendall(b"x" * 16384)
        try:
            answer = line.recv(64)
        except ConnectionResetError:
            answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 400")


def test_a_client_that_does_not_read_is_cut_off(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work ends, and nobody else waits."""
    monkeypatch.setattr("camshaft.core.serve.http.protocol.READ_TIMEOUT_S", 0.2)
    # Some 10 MB, more than the kernel holds for it.
    fields = {"max_tokens": 200, "ignore_eos": True, "logprobs": True, "top_logprobs": 20, "n": 16}
    body = json.dumps({"messages": [{"role": "user", "content": "ab"}], "stream": True, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        line.settimeout(60)
        line.sendall(head + body)
        assert server.post(COMPLETIONS, {"prompt": "ok", "temperature": 0}).status_code == 200
        eventually(lambda: server.get("/load").json() == {"server_load": 0})
        said = trickle(line, b"")
    assert said.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in said


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("fields", [{"max_tokens": 60}, {"stream": True}])
def test_who_closes_only_its_own_half_is_answered(
    server: Running, fields: dict[str, Any], version: str
) -> None:
    """As `nc` and what else ends its request with an end of file do; the connection is closed with the answer."""
    with connection(server) as line:
        line.sendall(post({"prompt": "ok", "temperature": 0, **fields}, version))
        line.shutdown(socket.SHUT_WR)
        said = all_of(line)
    assert said.count(b" 200 OK\r\n") == 1
    assert b'"finish_reason":"stop"' in said


def test_requests_behind_which_the_client_closed_its_half_are_answered(server: Running) -> None:
    with connection(server) as line:
        line.sendall(post({"prompt": "ok", "temperature": 0}) * 3)
        line.shutdown(socket.SHUT_WR)
        assert all_of(line).count(b" 200 OK\r\n") == 3


@pytest.mark.parametrize(("version", "begins"), [("1.1", b"HTTP/1.1 100"), ("1.0", b"")])
def test_who_leaves_later_is_noticed(server: Running, version: str, begins: bytes) -> None:
    """After its own half, or, where a reset could not be asked for, with both at some time."""
    before = generated(server)
    with connection(server) as line:
        line.sendall(post(ENDLESS, version))
        eventually(lambda: generated(server) > before + 50)
        line.shutdown(socket.SHUT_WR)
        if begins:
            assert line.recv(12) == begins
    eventually(lambda: server.get("/load").json() == {"server_load": 0})
    assert generated(server) - before < 250


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_requests_that_do_not_wait_for_answers(server: Running, fields: dict[str, Any]) -> None:
    with connection(server) as line:
        line.sendall(post({"prompt": "ok", "temperature": 0, **fields}) * 5 + LAST)
        said = all_of(line)
    assert said.count(b"HTTP/1.1 200 OK") == 6
    assert said.count(b"[DONE]") == (5 if fields else 0)


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_who_leaves_is_noticed_with_requests_still_waiting(server: Running, fields: dict[str, Any]) -> None:
    """The one that is answered ends at once; those behind it never begin."""
    before = generated(server)
    with connection(server) as line:
        line.sendall(post({**ENDLESS, **fields}) * 20)
        eventually(lambda: server.get("/load").json() == {"server_load": 1})
    eventually(lambda: server.get("/load").json() == {"server_load": 0})
    assert generated(server) - before < 250


def test_a_flood_of_requests_waits_its_turn(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost, and few are taken in at a time."""
    begun = BoundedHttpProtocol.on_headers_complete
    most = 0

    def watched(protocol: BoundedHttpProtocol) -> None:
        nonlocal most
        begun(protocol)
        most = max(most, len(protocol.pipeline))

    monkeypatch.setattr(BoundedHttpProtocol, "on_headers_complete", watched)
    quick = LAST.replace(b"Connection: close\r\n", b"")
    with connection(server) as line:
        line.sendall(post({"prompt": "ok", "temperature": 0}) + quick * 2000 + LAST)
        assert all_of(line).count(b"HTTP/1.1 200 OK") == 2002
    assert MAX_PIPELINED <= most <= MAX_PIPELINED + PIECE_BYTES // len(quick)


def test_who_leaves_a_flood_is_noticed(server: Running) -> None:
    with connection(server) as line:
        line.sendall(post({**ENDLESS, "stream": True}) + post(ENDLESS) * 500)
        assert line.recv(64).startswith(b"HTTP/1.1 200")
    eventually(lambda: server.get("/load").json() == {"server_load": 0})


@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_of_another_protocol_is_ignored(server: Running, chunked: bool) -> None:
    """As Java's client makes one: with the body behind it."""
    body = json.dumps({"prompt": "\r\nUpgrade: ok", "temperature": 0, "echo": True}).encode()
    size = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n"
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\n".encode() + offer + size + b"\r\n\r\n"
    whole = head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
    with connection(server) as line:
        line.sendall(whole + whole + LAST)
        said = all_of(line)
    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert said.count(b"Upgrade: ok") == 4  # each answer repeats it, and its echo


@pytest.mark.parametrize("cut", [b"Upgr", b"\r\nUpgrade", b": h2c", b"h2c\r\n"])
def test_an_offer_may_come_in_two_pieces(server: Running, cut: bytes) -> None:
    whole = post({"prompt": "ok", "temperature": 0}).replace(
        b"Host: x", b"Host: x\r\nUpgrade: h2c\r\nConnection: upgrade"
    )
    at = whole.index(cut) + len(cut)
    with connection(server) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(whole[:at])
        eventually(lambda: server.get("/health").status_code == 200)
        line.sendall(whole[at:] + LAST)
        assert all_of(line).count(b"HTTP/1.1 200 OK") == 2


CHUNKED = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("begin", [b"0\r\n", b"0\r\nX: ", b"1;"])
def test_what_frames_a_body_is_bounded_too(server: Running, begin: bytes) -> None:
    """Trailers, one of them, and a chunk's extension."""
    more = b"X: y\r\n" if begin == b"0\r\n" else b"y" * 6
    with connection(server) as line, contextlib.suppress(ConnectionError):
        line.sendall(CHUNKED + begin)
        for _ in range(1000):
            line.sendall(more * 10_000)
        pytest.fail("60 MB of it were taken")


def test_a_trailer_is_no_header(server: Running) -> None:
    body = json.dumps({"prompt": "ok", "temperature": 0}).encode()
    with connection(server) as line:
        line.sendall(CHUNKED + b"%x\r\n%b\r\n0\r\nX-Request-Id: trailing\r\n\r\n" % (len(body), body) + LAST)
        said = all_of(line)
    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert b"trailing" not in said


def test_a_long_body_says_nothing_of_the_next_head(server: Running) -> None:
    """The beginning of a head that came together with another request."""
    with connection(server) as line:
        line.sendall(post({"prompt": "ok", "temperature": 0, "user": "u" * 100_000}) + LAST[:20])
        said = line.recv(65536)
        line.sendall(LAST[20:])
        said += all_of(line)
    assert said.count(b"HTTP/1.1 200 OK") == 2


def test_what_is_no_http(server: Running) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/3.7\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        with connection(server) as line:
            line.sendall(garbage)
            head, _, body = all_of(line).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"]["type"] == "BadRequestError"


def test_a_broken_chunk_is_400(server: Running) -> None:
    with connection(server) as line:
        line.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        eventually(lambda: server.get("/health").status_code == 200)
        line.sendall(b"zz\r\n")
        assert all_of(line).startswith(b"HTTP/1.1 400")


def test_garbage_behind_a_stream_ends_it(server: Running) -> None:
    with connection(server) as line:
        line.sendall(post({**ENDLESS, "stream": True}))
        said = line.recv(65536)
        line.sendall(b"\x00\x01garbage\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            said += all_of(line)
    assert said.count(b"HTTP/1.1") == 1
    eventually(lambda: server.get("/load").json() == {"server_load": 0})


def test_a_compressed_body(server: Running) -> None:
    body = gzip.compress(b'{"prompt": "ok"}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    refused = server.client.post(COMPLETIONS, content=body, headers=headers)
    assert refused.status_code == 415
    assert "Content-Encoding" in refused.json()["error"]["message"]
    plain = {"content-type": "application/json", "content-encoding": "identity"}
    assert server.client.post(COMPLETIONS, content=b'{"prompt": "ok"}', headers=plain).status_code == 200

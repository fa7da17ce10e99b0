"""The HTTP protocol of a connection: uvicorn's over httptools, which by itself waits for ever and takes a head without end.

What a client may cost before it has said anything whole is bounded in bytes and in time; how long a body may
take is bounded where it is read (`body.py`), how long an answer may take by `request_timeout_s`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .faults import HttpFault, error_bytes

MAX_HEAD_BYTES = 65536  # beside the piece that it begins in
MAX_PIPELINED = (
    32  # requests that wait behind the one being answered; no more is read while there are so many
)
PIECE_BYTES = 16384  # parsed at one go: what it holds of requests is taken in whole
HEAD_TIMEOUT_S = 30.0  # from the first byte (or the connection) to the end of the headers
LINGER_S = 10.0  # for the rest of a body that was answered before it was complete
# For a client to take what is sent before more of it is held than a write buffer; nginx's own default, too.
READ_TIMEOUT_S = 60.0
AT_ONCE_S = 0.05  # between the end of a request and an end of file that belongs to it
LOOK_AGAIN_S = 0.25  # for a reset, where a client has sent its end of file
# Longer than load balancers and clients keep an idle connection: whoever closes first must not be us, or a
# request that is on its way meets a closed door.
KEEP_ALIVE_S = 75

log = structlog.get_logger()


class _Parser(httptools.HttpRequestParser):
    """llhttp's, which takes nothing behind a head that offers another protocol: here that head is read again without.

    A server may ignore an offer (RFC 9110, 7.8); Java's own client makes one with every first request.
    """

    def __init__(self, protocol: BoundedHttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    @property
    def offered(self) -> bool:
        """Whether the head that was just read offers another protocol."""
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        rest = bytes(data)
        while rest:
            try:
                super().feed_data(rest)
                rest = b""
            except httptools.HttpParserUpgrade as stop:
                if not self.offered:
                    raise
                rest = self._protocol.head_without_offer() + rest[stop.args[0] :]


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 400 to a head or trailers beyond MAX_HEAD_BYTES and 408 to a head that is not complete in HEAD_TIMEOUT_S.

    A client that does not read its answer for READ_TIMEOUT_S or sends what is no HTTP while it is answered is cut off,
    which ends the work for it. Beyond MAX_PIPELINED requests it waits to be read, and its leaving is noticed late.
    """

    _answering: RequestResponseCycle | None = None  # `cycle` is the latest one, which may wait behind it
    _in_head = False  # some of a head has come
    _framing_bytes = 0  # since the head began or was complete, or the body's latest byte
    _held = b""  # what came and is not parsed yet
    _in_message = False  # headers or body are not complete
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _half_closed = False
    _look: asyncio.TimerHandle | None = None
    _complete_s = 0.0  # when the latest request was

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = _Parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._taken()
        if self._look is not None:
            self._look.cancel()
        self._abandon()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: for who closed only its own half, as `nc` does, and waits for an answer.

        Who closed both looks the same, until a reset is its answer to what it is sent: an interim response, while
        there may be one. After that, and in HTTP/1.0, an end counts as leaving unless it comes with the request.
        """
        if self._half_closed:
            return True  # seen again where reading was paused meanwhile
        tls = self.transport.get_extra_info("sslcontext")  # knows no half of a close
        if self._waits_for_head() or self._in_message or tls or self._answering is None:
            return False
        asks = self.cycle.scope["http_version"] == "1.1" and not self._answering.response_started
        self._half_closed = asks or self.loop.time() <= self._complete_s + AT_ONCE_S
        self.cycle.keep_alive = False
        if asks:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._look_for_reset()
        return self._half_closed

    def _look_for_reset(self) -> None:
        """Nothing tells of one while nothing is read or written."""
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._cut_off()
        else:
            self._look = self.loop.call_later(LOOK_AGAIN_S, self._look_for_reset)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_TIMEOUT_S, self._cut_off)

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        held, begin = self._held + data, 0
        while begin < len(held) and len(self.pipeline) < MAX_PIPELINED and not self.transport.is_closing():
            self._parse(held[begin : begin + PIECE_BYTES])
            begin += PIECE_BYTES
        self._held = held[begin:]
        if self._held and not self.transport.is_closing():
            self.flow.resume_reading()  # or a cycle that waits for its client would undo the pause
            self.transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        if self._in_message:
            self._framing_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_message and self._framing_bytes > MAX_HEAD_BYTES:
            self.send_400_response("the request's headers or trailers are too long")
        if self._deadline is None and self._waits_for_head():
            self._arm(HEAD_TIMEOUT_S)  # empty lines before a request are bytes, too

    def on_message_begin(self) -> None:
        self._in_head, self._framing_bytes, self._in_message = True, 0, True
        super().on_message_begin()

    def head_without_offer(self) -> bytes:
        """The head that was just read, without its offer of another protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *lines, b"", b""])

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are no part of the head, and nothing here reads them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.offered:
            return  # it comes again
        self._in_head, self._framing_bytes = False, 0
        self._disarm()
        at_once = self._waits_for_head()
        super().on_headers_complete()
        if at_once:
            self._answering = self.cycle
        else:
            self.flow.resume_reading()  # or nobody would notice that the client has gone

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_head:
            return  # it comes again
        self._in_message, self._complete_s = False, self.loop.time()
        super().on_message_complete()
        if self._waits_for_head():
            self._disarm()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answering = self.pipeline[-1][0]  # is begun now
        super().on_response_complete()
        if self._held and not self.transport.is_closing():
            self.transport.resume_reading()
            self.data_received(b"")
        if self._in_message and not self._in_head and self._waits_for_head():
            self._arm(LINGER_S)  # an early answer; the client is let finish, so that it reads it

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._cut_off()  # closing would wait for a client that does not read
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Ends a connection that speaks no HTTP; says so unless that would land in the middle of an answer."""
        log.info("refused what is no HTTP", why=msg, client=":".join(map(str, self.client or "-")))
        if self._answering is not None and self._answering.response_started and not self._waits_for_head():
            self._cut_off()
        else:
            self._abandon()
            self._refuse(HttpFault(400, msg), b"400 Bad Request")

    def _refuse(self, fault: HttpFault, status: bytes) -> None:
        body = error_bytes(fault)
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
            status,
            len(body),
        )
        self.transport.write(head + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _cut_off(self) -> None:
        self._abandon()
        self.transport.abort()

    def _abandon(self) -> None:
        """Lets what is being answered know that nobody reads it, and what waits behind it never begin."""
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _taken(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _waits_for_head(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _arm(self, after_s: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(after_s, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._in_head:
            why = f"the headers were not complete within {HEAD_TIMEOUT_S:g} s"
            self._refuse(HttpFault(408, why), b"408 Request Timeout")
        else:
            self.transport.close()

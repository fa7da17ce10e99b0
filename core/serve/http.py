"""The HTTP protocol of a connection: uvicorn's over httptools, which by itself waits for ever and takes a head without end.

What a client may cost before it has said anything whole is bounded in bytes and in time; how long a body may
take is bounded where it is read (`body.py`), how long an answer may take by `request_timeout_s`.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .faults import HttpFault, error_bytes

MAX_HEAD_BYTES = 65536
HEAD_TIMEOUT_S = 30.0  # from the first byte (or the connection) to the end of the headers
LINGER_S = 10.0  # for the rest of a body that was answered before it was complete
# For a client to take what is sent before more of it is held than a write buffer; nginx's own default, too.
READ_TIMEOUT_S = 60.0
# Longer than load balancers and clients keep an idle connection: whoever closes first must not be us, or a
# request that is on its way meets a closed door.
KEEP_ALIVE_S = 75


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 400 to a head beyond MAX_HEAD_BYTES and 408 to one that is not complete in HEAD_TIMEOUT_S; closes.

    A client that does not read its answer for READ_TIMEOUT_S is cut off, which ends the work for it.
    """

    _in_head = False  # some of a head has come
    _head_bytes = 0
    _in_message = False  # headers or body are not complete
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's headers are too long.")
        if self._deadline is None and self._waits_for_head():
            self._arm(HEAD_TIMEOUT_S)  # empty lines before a request are bytes, too

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._in_message = True, 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()
        if self._waits_for_head():
            self._disarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_message and not self._in_head and self._waits_for_head():
            self._arm(LINGER_S)  # an early answer; the client is let finish, so that it reads it

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for a client that does not read
        else:
            super().timeout_keep_alive_handler()

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
            body = error_bytes(HttpFault(408, f"the headers were not complete within {HEAD_TIMEOUT_S:g} s"))
            head = f"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            self.transport.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        self.transport.close()

"""The HTTP protocol of a connection: uvicorn's over httptools, which by itself takes a head without end."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65536


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 400 and closes once the request line and headers exceed MAX_HEAD_BYTES and still go on."""

    _in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The request's headers are too long.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

"""Errors in OpenAI's shape. A body never holds the client's input and stays under a few hundred bytes."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import msgspec
from starlette.responses import Response

from ...errors import CamshaftError, CapacityError, EngineDead, QueueFull, RequestError

_MAX_MESSAGE_CHARS = 2048
_REMEMBERED = 1024

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}


class HttpFault(CamshaftError):
    """An error with its HTTP status; `retry_after_s` becomes a header."""

    def __init__(
        self, status: int, message: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.retry_after_s = retry_after_s


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int


class ErrorReply(msgspec.Struct):
    error: ErrorBody


_encode = msgspec.json.Encoder().encode


def fault_of(error: CamshaftError) -> HttpFault:
    """The status that an error of the product deserves."""
    if isinstance(error, HttpFault):
        return error
    if isinstance(error, QueueFull):
        return HttpFault(503, str(error), error.param, retry_after_s=1)
    if isinstance(error, RequestError):
        return HttpFault(400, str(error), error.param)
    if isinstance(error, CapacityError):
        return HttpFault(400, str(error))
    if isinstance(error, EngineDead):
        return HttpFault(503, str(error), retry_after_s=30)
    return HttpFault(500, str(error))


class LatestFaults:
    """What the latest requests that got an error were told, by their ids."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def note(self, request_id: str, error: CamshaftError) -> None:
        """Remembers an error answer, of an id its newest."""
        fault = fault_of(error)
        told = {"status": fault.status, "message": _message(fault), "param": fault.param}
        self._told[request_id] = {**told, "at_unix_s": time.time()}
        self._told.move_to_end(request_id)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    def get(self, request_id: str) -> dict[str, Any] | None:
        """status, message, param and at_unix_s; None where no error is remembered."""
        return self._told.get(request_id)


def error_bytes(fault: HttpFault) -> bytes:
    """The JSON body of a fault."""
    body = ErrorBody(
        _message(fault), _TYPES.get(fault.status, "InternalServerError"), fault.param, fault.status
    )
    return _encode(ErrorReply(body))


def _message(fault: HttpFault) -> str:
    message = str(fault)
    if len(message) > _MAX_MESSAGE_CHARS:
        message = message[: _MAX_MESSAGE_CHARS - 1] + "…"
    # A lone surrogate in a message could not be encoded.
    return message.encode("utf-8", "replace").decode("utf-8")


def error_response(error: CamshaftError) -> Response:
    """A whole response for an error raised before anything was sent."""
    fault = fault_of(error)
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    if fault.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if fault.status == 408:
        headers["Connection"] = "close"  # the rest of that body is not waited for
    return Response(error_bytes(fault), fault.status, headers, media_type="application/json")

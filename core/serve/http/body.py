"""Reading a request's body: bounded while it arrives, decoded once, faults reported without echoing it."""

from __future__ import annotations

import asyncio
import codecs
from functools import cache
from typing import TypeVar

import msgspec
import structlog
from starlette.requests import ClientDisconnect, Request

from ...errors import RequestError
from .faults import HttpFault
from .mistakes import explained

T = TypeVar("T", bound=msgspec.Struct)

_MAX_NAMES = 8
_MAX_TOLD = 256
_MAX_BYTES_SEARCHED = 1 << 20  # names are looked for in no larger body
BODY_TIMEOUT_S = 60.0  # a client that sends a byte now and then must not hold a connection for ever
# Decoding cannot be interrupted and holds up every stream: bodies of these sizes take it some 60 ms.
MAX_VALUES = 1 << 20  # as many token ids as anybody sends
MAX_MEMBERS = 1 << 17  # lists, objects and their keys, which cost ten times as much
log = structlog.get_logger()
_told: set[str] = set()


class JsonSize:
    """Counts the values and members of a JSON text while it arrives; text that is not JSON gets some count
    and is refused where it is decoded."""

    def __init__(self) -> None:
        self.values = 0
        self.members = 0
        self._in_string = False
        self._escape = b""  # a backslash whose other half is to come

    def feed(self, piece: bytes) -> None:
        """Takes the next piece. Raises HttpFault 413 once there are too many."""
        piece = self._escape + piece
        self._escape = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        piece = piece[: len(piece) - len(self._escape)]
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self.values += outside.count(b",")
        self.members += outside.count(b"[") + outside.count(b"{") + outside.count(b":")
        if self.values > MAX_VALUES or self.members > MAX_MEMBERS:
            raise HttpFault(413, f"the body has more than {MAX_VALUES} values or {MAX_MEMBERS} members")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises HttpFault 413 as soon as it is too large or has too many parts, 408 if it takes
    too long.
    """
    too_large = HttpFault(413, f"the request body is larger than {max_bytes} bytes (max_body_bytes)")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    parts = JsonSize()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                parts.feed(chunk)
                chunks.append(chunk)
    except TimeoutError:
        raise HttpFault(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise HttpFault(400, "the client closed the connection before the body was complete") from None
    return b"".join(chunks)


async def read_struct(request: Request, kind: type[T], max_bytes: int) -> T:
    """The body as a `kind`. Raises HttpFault 413 or 415, or RequestError naming the field at fault."""
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise HttpFault(415, "the body must be JSON: send Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpFault(415, "the body must not be compressed: send no Content-Encoding")
    body = (await read_body(request, max_bytes)).removeprefix(codecs.BOM_UTF8)
    decoded = decode(body, kind)
    if len(body) <= _MAX_BYTES_SEARCHED:
        _tell_unknown(unknown_fields(body, kind))
    return decoded


def _tell_unknown(names: list[str]) -> None:
    """Says once of each field that it is ignored."""
    fresh = [name for name in names if name not in _told][: _MAX_TOLD - len(_told)]
    if fresh:
        _told.update(fresh)
        log.info("unknown fields are ignored; each is told once", fields=fresh[:_MAX_NAMES], count=len(fresh))


def decode(body: bytes, kind: type[T]) -> T:
    """Raises RequestError; its message names the field and what it must be, and never holds a value."""
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(*explained(str(error), kind)) from None
    except msgspec.DecodeError as error:
        why = str(error).removeprefix("JSON is malformed: ") if body else "it is empty"
        raise RequestError(f"the body is not valid JSON: {why}") from None
    except UnicodeDecodeError:
        raise RequestError("the body is not valid JSON: it is not UTF-8") from None
    except RecursionError:
        raise RequestError("the body is not valid JSON: it is nested too deeply") from None


def unknown_fields(body: bytes, kind: type[msgspec.Struct]) -> list[str]:
    """Names at the top level that `kind` does not know, cut to 64 characters."""
    known = _fields(kind)
    return [name[:64] for name in _raw.decode(body) if name not in known]


_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind, strict=False)  # 16.0 and "16" are 16, as for vLLM


@cache
def _fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)

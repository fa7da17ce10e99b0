"""The outermost ASGI layer: request id, API key, HEAD, access log, and the last catch before a client sees a traceback."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from typing import Any

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...config import ServeConfig
from ...errors import CamshaftError, RequestError
from ..observe.metrics import Metrics
from .faults import HttpFault, error_response

# What a load balancer or a scraper asks without a key.
_OPEN_PATHS = frozenset({"/health", "/ping", "/load", "/version", "/metrics"})
_QUIET_PATHS = frozenset({"/health", "/ping", "/load", "/metrics"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")

log = structlog.get_logger()


def header(scope: Scope, name: bytes) -> str:
    """The first header of that name, or an empty text."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def request_id_of(scope: Scope) -> str:
    """The client's X-Request-Id if it is a plain name, else a new one."""
    given = header(scope, b"x-request-id")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def take_request_id(request: Request, wanted: str | None) -> str:
    """The request's id: that of its body where no X-Request-Id names it. Raises RequestError for a wild one."""
    if wanted is None or header(request.scope, b"x-request-id"):
        return request.state.request_id
    if not _REQUEST_ID.fullmatch(wanted):
        raise RequestError(
            "request_id may have 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'", "request_id"
        )
    request.state.request_id = wanted
    structlog.contextvars.bind_contextvars(request_id=wanted)
    return wanted


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, config: ServeConfig, metrics: Metrics) -> None:
        self._app = app
        self._keys = [key.encode() for key in config.api_key or ()]
        self._root_path = (config.root_path or "").rstrip("/")
        self._metrics = metrics
        self._access_log = not config.disable_uvicorn_access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        if self._root_path:
            path = scope["path"]
            if path.startswith(self._root_path + "/"):  # not every proxy takes it off
                path = path[len(self._root_path) :]
            scope = {**scope, "root_path": self._root_path, "path": path}
        method = scope["method"]
        if method == "HEAD":
            scope = {**scope, "method": "GET"}  # answered as GET; the server below leaves the body out
        begun_s = time.monotonic()
        status = 0

        async def tagged_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                name = scope["state"]["request_id"]  # the body may have named it
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                self._check_key(scope)
                await self._app(scope, receive, tagged_send)
            except CamshaftError as error:
                await error_response(error)(scope, receive, tagged_send)
            except Exception:
                log.exception("request failed", path=scope["path"])
                if status and status != 500:
                    raise  # the server closes the connection: the client must not take half for the whole
                if not status:
                    fault = HttpFault(500, f"internal error, logged under {request_id}")
                    await error_response(fault)(scope, receive, tagged_send)
            finally:
                self._account(scope, method, status, begun_s)

    def _check_key(self, scope: Scope) -> None:
        if not self._keys or scope["path"] in _OPEN_PATHS or scope["method"] == "OPTIONS":
            return
        scheme, _, key = header(scope, b"authorization").partition(" ")
        given = key.strip().encode("latin-1")  # its bytes as they came
        # Compares with every key, so that the time taken tells nothing.
        fits = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(fits):
            raise HttpFault(401, "a valid API key is needed: send Authorization: Bearer KEY")

    def _account(self, scope: Scope, method: str, status: int, begun_s: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        duration_s = time.monotonic() - begun_s
        self._metrics.count_http(method, route, status or 499, duration_s)
        if not self._access_log or scope["path"] in _QUIET_PATHS:
            return
        client = scope.get("client")
        log.info(
            "access",
            method=method,
            path=scope["path"][:256],
            status=status or 499,
            duration_ms=round(duration_s * 1e3, 1),
            client=f"{client[0]}:{client[1]}" if client else "-",
            **_tokens(scope),
        )


def _tokens(scope: Scope) -> dict[str, Any]:
    """What a generation came to, for its access line."""
    generation = scope["state"].get("generation")
    if generation is None:
        return {}
    sequences = generation.sequences
    return {
        "prompt_tokens": sum(len(prompt) for prompt in {id(s.prompt): s.prompt for s in sequences}.values()),
        "completion_tokens": sum(s.num_tokens for s in sequences),
        "finish": ",".join(sorted({s.finish_reason or "gone" for s in sequences})),
    }

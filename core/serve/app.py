"""The HTTP application: routes, and nothing that generates."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
from fastapi import FastAPI, Request
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from ..errors import CamshaftError, RequestError
from ..version import __version__
from .api import replies
from .api.chat import chat_completions
from .api.completions import completions
from .api.prompts import chat_prompt, check_ids, encode_text, off_loop
from .api.service import Service
from .api.streams import ClientGoneError
from .api.wire import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .http.body import read_struct
from .http.faults import HttpFault, error_response
from .http.gate import Gate
from .observe.metrics import registry_of

_BODIES = (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
_REFERENCE = "#/components/schemas/{name}"


def build_app(service: Service) -> ASGIApp:
    """The whole application over one service."""
    config = service.config
    docs = not config.disable_fastapi_docs
    app = FastAPI(
        title="Camshaft",
        version=__version__,
        openapi_url="/openapi.json" if docs else None,
        docs_url="/docs" if docs else None,
        redoc_url=None,
    )
    _describe_bodies(app)
    _catch(app, service)
    _add_generation(app, service)
    _add_text(app, service)
    _add_operations(app, service)
    if config.enable_debug:
        _add_debug(app, service)
    gate = Gate(app, config, service.metrics)
    if not config.allowed_origins:
        return gate
    return CORSMiddleware(  # outermost, or a browser's script could not read why it was refused
        gate,
        allow_origins=config.allowed_origins,
        allow_methods=config.allowed_methods,
        allow_headers=config.allowed_headers,
        allow_credentials=config.allow_credentials,
        expose_headers=("x-request-id", "retry-after"),
    )


def _json(body: Any, status: int = 200) -> Response:
    return Response(replies.encode(body), status, media_type="application/json")


def _takes(kind: type[msgspec.Struct]) -> dict[str, Any]:
    reference = {"$ref": _REFERENCE.format(name=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def _describe_bodies(app: FastAPI) -> None:
    """Bodies are decoded by msgspec, so their schemas are added to the document by hand."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        fresh = app.openapi_schema is None
        document = generate()
        if fresh:
            _, components = msgspec.json.schema_components(_BODIES, ref_template=_REFERENCE)
            document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        return document

    app.openapi = openapi


def _catch(app: FastAPI, service: Service) -> None:
    async def product(request: Request, error: Exception) -> Response:
        known = cast(CamshaftError, error)
        if request.method == "POST":  # a question about a request is none itself
            service.faults.note(request.state.request_id, known)
        return error_response(known)

    async def http(_: Request, error: Exception) -> Response:
        cause = cast(HTTPException, error)
        messages = {
            404: "no such path; /v1/models and /docs tell what there is",
            405: "this path does not take this method",
        }
        response = error_response(HttpFault(cause.status_code, messages.get(cause.status_code, "refused")))
        response.headers.update(cause.headers or {})
        return response

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it; the log does

    async def unforeseen(request: Request, _: Exception) -> Response:
        return error_response(HttpFault(500, f"internal error, logged under {request.state.request_id}"))

    app.add_exception_handler(CamshaftError, product)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientGoneError, gone)
    app.add_exception_handler(Exception, unforeseen)


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions", openapi_extra=_takes(CompletionRequest))
    async def create_completion(request: Request) -> Response:
        return await completions(service, request)

    @app.post("/v1/chat/completions", openapi_extra=_takes(ChatRequest))
    async def create_chat_completion(request: Request) -> Response:
        return await chat_completions(service, request)


def _add_text(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", openapi_extra=_takes(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        body = await read_struct(request, TokenizeRequest, service.config.max_body_bytes)
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("exactly one of prompt and messages is needed", "prompt")
        if body.prompt is not None:
            special = body.add_special_tokens is not False
            ids = await encode_text(service.tokenizer, service.limits, body.prompt, special)
        else:
            trust = service.config.trust_request_chat_template
            ids = await chat_prompt(service.tokenizer, service.limits, body, service.chat_template, trust)
        names = None
        if body.return_token_strs:
            names = await off_loop(len(ids), lambda: [service.texts.text_of(token) for token in ids])
        return _json(replies.Tokens(len(ids), service.limits.max_model_len, ids, names))

    @app.post("/detokenize", openapi_extra=_takes(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        body = await read_struct(request, DetokenizeRequest, service.config.max_body_bytes)
        service.check_model(body.model)
        check_ids(body.tokens, service.limits.vocab_size, "tokens")
        text = await off_loop(
            4 * len(body.tokens), lambda: service.tokenizer.decode(body.tokens, skip_special_tokens=False)
        )
        return _json(replies.Detokenized(text))


def _add_operations(app: FastAPI, service: Service) -> None:
    registry = registry_of(service.metrics)

    def card(name: str) -> replies.ModelCard:
        return replies.ModelCard(
            name, service.created, service.config.model or name, service.limits.max_model_len
        )

    @app.get("/v1/models")
    @app.get("/v1/models/", include_in_schema=False)
    async def models() -> Response:
        return _json(replies.ModelList([card(name) for name in service.model_names]))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return _json(card(service.check_model(name)))

    @app.get("/health")
    @app.get("/ping")
    @app.post("/ping")
    async def health() -> Response:
        service.check_health()
        return Response()

    @app.get("/load")
    async def load() -> Response:
        return _json({"server_load": service.client.requests_in_flight})

    @app.get("/version")
    async def version() -> Response:
        return _json({"version": __version__})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _add_debug(app: FastAPI, service: Service) -> None:
    @app.get("/debug/explain/{name}")
    async def explain(name: str) -> Response:
        ids = service.client.sequence_ids(name)
        # All at once: an answer comes between two steps.
        told = await asyncio.gather(*(service.client.query("explain", each) for each in ids))
        found = dict(zip(ids, told, strict=True))
        known = any(body and "error" not in body for body in found.values())
        fault = service.faults.get(name)
        if not known and fault is None:
            raise HttpFault(404, f"no request {name[:128]!r} is remembered")
        return _json({"id": name, "sequences": found if known else {}, "fault": fault})

    @app.get("/debug/stats")
    async def stats() -> Response:
        return _json(await service.client.query("stats"))

    @app.get("/debug/memory")
    async def memory() -> Response:
        return _json(await service.client.query("memory"))

    @app.get("/debug/integrity")
    async def integrity() -> Response:
        return _json(await service.client.query("integrity"))

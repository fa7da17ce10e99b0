"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ..http.body import read_struct
from ..http.gate import take_request_id
from ..text.generation import Delta, Generation
from .logprobs import TokenNames, chat_logprobs, prompt_logprobs
from .params import Wanted, bad_word_ids, check_listed_ids, refuse_unsupported, wanted
from .prompts import callable_tools, chat_prompt, check_length, truncated
from .replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
)
from .service import Service
from .streams import Answer, events, respond
from .tools import Reading, ToolCallReader
from .wire import ChatRequest


@dataclass(slots=True)
class _Call:
    """One call being answered."""

    service: Service
    body: ChatRequest
    id: str
    model: str
    generation: Generation
    wanted: Wanted
    names: TokenNames
    created: int
    role: str
    echo: str  # the last message's text, where the client wants it back
    readers: list[ToolCallReader] | None  # by choice; None where no tool may be called

    def chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        chunk = ChatChunk(self.id, self.created, self.model, choices)
        if self.body.return_token_ids and choices and choices[0].delta.role is not UNSET:
            chunk.prompt_token_ids = self.generation.sequences[0].prompt
        return chunk


async def chat_completions(service: Service, request: Request) -> Response:
    """Answers one call. Raises CamshaftError for what is wrong with it."""
    service.check_open()
    body = await read_struct(request, ChatRequest, service.config.max_body_bytes)
    reply_id = f"chatcmpl-{take_request_id(request, body.request_id)}"
    model = service.check_model(body.model)
    refuse_unsupported(body)
    trust = service.config.trust_request_chat_template
    prompt = await chat_prompt(service.tokenizer, service.limits, body, service.chat_template, trust)
    most = body.max_completion_tokens or body.max_tokens
    prompt = truncated(prompt, body, service.limits, most)
    check_length(len(prompt), service.limits)
    bad_words = await bad_word_ids(body, service.tokenizer)
    check_listed_ids(body, bad_words, body.n or 1)
    want = wanted(body, len(prompt), bad_words, service.limits, service.defaults)
    continues = bool(body.continue_final_message)
    call = _Call(
        service=service,
        body=body,
        id=reply_id,
        model=model,
        generation=await service.start(reply_id, body, [prompt], [want]),
        wanted=want,
        names=TokenNames(service.texts, bool(body.return_tokens_as_token_ids)),
        created=int(time.time()),
        role=body.messages[-1].role if continues else service.config.response_role,
        echo=_last_text(body) if body.echo and continues else "",
        readers=_readers(body),
    )
    stream = _events(call) if body.stream else None
    return await respond(request, service, call.generation, stream, partial(_reply, call))


def _readers(body: ChatRequest) -> list[ToolCallReader] | None:
    if not callable_tools(body):
        return None
    most = 1 if body.parallel_tool_calls is False else None
    return [ToolCallReader(most) for _ in range(body.n or 1)]


def _last_text(body: ChatRequest) -> str:
    content = body.messages[-1].content
    return content if isinstance(content, str) else ""


def _reply(call: _Call, answers: list[Answer]) -> ChatCompletion:
    choices = [_choice(call, answer) for answer in answers]
    usage = call.service.usage(call.generation)
    reply = ChatCompletion(call.id, call.created, call.model, choices, usage)
    first = call.generation.sequences[0]
    if call.body.prompt_logprobs is not None:
        reply.prompt_logprobs = prompt_logprobs(call.names, first.prompt_logprobs, call.body.prompt_logprobs)
    if call.body.return_token_ids:
        reply.prompt_token_ids = first.prompt
    return reply


def _choice(call: _Call, answer: Answer) -> ChatChoice:
    choice = ChatChoice(
        answer.index,
        ChatMessage(call.role, call.echo + "".join(answer.text)),
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
    )
    if call.readers is not None:
        reading = _read(call.readers[answer.index], "".join(answer.text), ended=True)
        if reading.calls:
            choice.message.content = call.echo + reading.text or None
            choice.message.tool_calls = reading.calls
        choice.finish_reason = _reason(call.readers[answer.index], answer.finish_reason)
    if call.wanted.top_logprobs is not None:
        choice.logprobs = chat_logprobs(call.names, answer.logprobs, call.wanted.top_logprobs)
    if call.body.return_token_ids:
        choice.token_ids = answer.tokens
    return choice


def _read(reader: ToolCallReader, text: str, ended: bool) -> Reading:
    reading = reader.push(text)
    if ended:
        rest = reader.finish()
        reading = Reading(reading.text + rest.text, reading.calls + rest.calls)
    return reading


def _reason(reader: ToolCallReader, reason: str | None) -> str | None:
    return "tool_calls" if reason == "stop" and reader.num_calls else reason


def _events(call: _Call) -> AsyncIterator[bytes]:
    return events(
        call.service, call.generation, call.body.stream_options, call.chunk, partial(_chunk_choices, call)
    )


def _chunk_choices(call: _Call, delta: Delta, first: bool) -> list[ChatChunkChoice]:
    """The role at first; then the text, if there is any to tell, and the end in the same chunk."""
    opening = [ChatChunkChoice(delta.index, ChatDelta(call.role, call.echo))] if first else []
    choice = ChatChunkChoice(delta.index, ChatDelta(), finish_reason=delta.finish_reason)
    text = delta.text
    if call.readers is not None:
        reader = call.readers[delta.index]
        before = reader.num_calls
        reading = _read(reader, delta.text, delta.finish_reason is not None)
        text, choice.finish_reason = reading.text, _reason(reader, delta.finish_reason)
        for index, made in enumerate(reading.calls, start=before):
            made.index = index
        choice.delta.tool_calls = reading.calls or UNSET
    if text:
        choice.delta.content = text
    if delta.finish_reason is not None:
        choice.stop_reason = delta.stop_reason
    if call.wanted.top_logprobs is not None and delta.logprobs:
        choice.logprobs = chat_logprobs(call.names, delta.logprobs, call.wanted.top_logprobs)
    if call.body.return_token_ids:
        choice.token_ids = delta.tokens
    made_calls = choice.delta.tool_calls is not UNSET
    told = text or made_calls or delta.finish_reason or choice.logprobs or choice.token_ids
    return [*opening, choice] if told else opening

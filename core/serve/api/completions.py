"""`POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ..http.body import read_struct
from ..http.gate import take_request_id
from ..text.generation import Delta, Generation
from .logprobs import TokenNames, completion_logprobs, echo_offsets, echoed_logprobs, prompt_logprobs
from .params import COMPLETION_MAX_TOKENS, Wanted, bad_word_ids, check_listed_ids, wanted
from .prompts import check_length, completion_prompts, off_loop, truncated
from .replies import Completion, CompletionChoice, CompletionLogprobs
from .service import Service
from .streams import Answer, events, respond
from .wire import CompletionRequest


@dataclass(slots=True)
class _Call:
    """One call being answered."""

    service: Service
    body: CompletionRequest
    id: str
    model: str
    generation: Generation
    wanted: list[Wanted]  # by prompt
    echoes: list[str]  # by prompt; empty without echo
    names: TokenNames
    created: int
    echoed: dict[int, CompletionLogprobs] = field(default_factory=dict)  # by prompt: each of n tells the same

    def prompt_of(self, index: int) -> int:
        return index // self.wanted[0].n

    def reply(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(self.id, self.created, self.model, choices)


async def completions(service: Service, request: Request) -> Response:
    """Answers one call. Raises CamshaftError for what is wrong with it."""
    service.check_open()
    body = await read_struct(request, CompletionRequest, service.config.max_body_bytes)
    reply_id = f"cmpl-{take_request_id(request, body.request_id)}"
    model = service.check_model(body.model)
    prompts = await completion_prompts(
        service.tokenizer, service.limits, body.prompt, body.add_special_tokens is not False
    )
    most = body.max_tokens or COMPLETION_MAX_TOKENS
    prompts = [truncated(ids, body, service.limits, most) for ids in prompts]
    bad_words = await bad_word_ids(body, service.tokenizer)
    check_listed_ids(body, bad_words, len(prompts) * (body.n or 1))
    want: list[Wanted] = []
    for prompt in prompts:
        check_length(len(prompt), service.limits)
        want.append(wanted(body, len(prompt), bad_words, service.limits, service.defaults))
    echoes = await _echoes(service, body, prompts)
    call = _Call(
        service=service,
        body=body,
        id=reply_id,
        model=model,
        generation=await service.start(reply_id, body, prompts, want),
        wanted=want,
        echoes=echoes,
        names=TokenNames(service.texts, bool(body.return_tokens_as_token_ids)),
        created=int(time.time()),
    )
    stream = _events(call) if body.stream else None
    return await respond(request, service, call.generation, stream, partial(_reply, call))


async def _echoes(service: Service, body: CompletionRequest, prompts: list[list[int]]) -> list[str]:
    if not body.echo:
        return [""] * len(prompts)
    if body.truncate_prompt_tokens is None and body.prompt:
        if isinstance(body.prompt, str):
            return [body.prompt]
        if isinstance(body.prompt[0], str):
            return [str(text) for text in body.prompt]
    decode = service.tokenizer.decode
    return await off_loop(
        sum(map(len, prompts)), lambda: [decode(prompt, skip_special_tokens=False) for prompt in prompts]
    )


def _reply(call: _Call, answers: list[Answer]) -> Completion:
    reply = call.reply([_choice(call, answer) for answer in answers])
    reply.usage = call.service.usage(call.generation)
    return reply


def _choice(call: _Call, answer: Answer) -> CompletionChoice:
    want = call.wanted[call.prompt_of(answer.index)]
    echo = call.echoes[call.prompt_of(answer.index)]
    sequence = call.generation.sequences[answer.index]
    choice = CompletionChoice(
        answer.index,
        echo + "".join(answer.text),
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
    )
    if want.top_logprobs is not None:
        choice.logprobs = CompletionLogprobs()
        _extend(choice.logprobs, _echo_logprobs(call, answer.index))
        offsets = [len(echo) + offset for offset in answer.text_offsets]
        _extend(
            choice.logprobs,
            completion_logprobs(
                call.names, answer.logprobs, offsets[: len(answer.logprobs)], want.top_logprobs
            ),
        )
    if call.body.prompt_logprobs is not None:
        choice.prompt_logprobs = prompt_logprobs(
            call.names, sequence.prompt_logprobs, call.body.prompt_logprobs
        )
    if call.body.return_token_ids:
        choice.token_ids = answer.tokens
        choice.prompt_token_ids = sequence.prompt
    return choice


def _echo_logprobs(call: _Call, index: int) -> CompletionLogprobs:
    place = call.prompt_of(index)
    want = call.wanted[place]
    if not want.echo or want.top_logprobs is None:
        return CompletionLogprobs()
    if place not in call.echoed:
        sequence = call.generation.sequences[index]
        prompt, told = sequence.prompt, sequence.prompt_logprobs
        offsets = echo_offsets(call.service.texts, prompt, len(call.echoes[place]))
        call.echoed[place] = echoed_logprobs(call.names, prompt, offsets, told, want.top_logprobs)
    return call.echoed[place]


def _extend(reply: CompletionLogprobs, more: CompletionLogprobs) -> None:
    reply.text_offset += more.text_offset
    reply.token_logprobs += more.token_logprobs
    reply.tokens += more.tokens
    reply.top_logprobs += more.top_logprobs


def _events(call: _Call) -> AsyncIterator[bytes]:
    return events(
        call.service, call.generation, call.body.stream_options, call.reply, partial(_chunk_choices, call)
    )


def _chunk_choices(call: _Call, delta: Delta, first: bool) -> list[CompletionChoice]:
    """Nothing where there is only half a character, or the beginning of a stop string."""
    want = call.wanted[call.prompt_of(delta.index)]
    echo = call.echoes[call.prompt_of(delta.index)]
    choice = CompletionChoice(
        delta.index,
        echo + delta.text if first else delta.text,
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )
    if want.top_logprobs is not None:
        logprobs = CompletionLogprobs()
        if first:
            _extend(logprobs, _echo_logprobs(call, delta.index))
        offsets = [len(echo) + offset for offset in delta.text_offsets[: len(delta.logprobs)]]
        _extend(logprobs, completion_logprobs(call.names, delta.logprobs, offsets, want.top_logprobs))
        choice.logprobs = logprobs if logprobs.tokens else None
    if call.body.return_token_ids:
        choice.token_ids = delta.tokens
        if first:
            choice.prompt_token_ids = call.generation.sequences[delta.index].prompt
    told = choice.text or choice.finish_reason or choice.logprobs or choice.token_ids
    return [choice] if told else []

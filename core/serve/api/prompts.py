"""From what clients send to token ids: the forms of `prompt`, chat messages, length checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from ...errors import RequestError
from .tools import check_tools, require_readable, with_arguments_parsed
from .wire import ChatRequest, ContentPart, Message, Prompt, SamplingFields, TokenizeRequest

R = TypeVar("R")

MAX_PROMPTS = 256
# Longer texts are tokenised in a thread (tokenizers releases the GIL), so that streams keep flowing.
_INLINE_SIZE = 8192
_MESSAGE_CHARS = 64  # what the template adds around a message
_TEXT_PARTS = frozenset({"text", "input_text", "refusal"})


class Tokenizer(Protocol):
    """What serving needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def special_tokens(self) -> frozenset[str]: ...
    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...
    @property
    def render_chat(self) -> Callable[..., str]: ...  # of messages, with the options of a chat template
    @property
    def encode_chat(self) -> Callable[..., list[int]]: ...  # the same, as token ids


class Limits(Protocol):
    """Bounds of the model."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_prompt_chars(self) -> int | None: ...


async def off_loop(size: int, work: Callable[[], R]) -> R:
    """Runs `work` on so many characters or token ids here if they are few, else in a thread."""
    return work() if size <= _INLINE_SIZE else await asyncio.to_thread(work)


async def completion_prompts(
    tokenizer: Tokenizer, limits: Limits, prompt: Prompt | None, add_special_tokens: bool
) -> list[list[int]]:
    """Token ids of each prompt. Raises RequestError for mixed forms, foreign ids, nothing, or too much."""
    if prompt is None:
        raise RequestError("a prompt is required", "prompt")

    def sort_out() -> tuple[list[list[int]], list[str]]:
        items = _as_items(prompt)
        if len(items) > MAX_PROMPTS:
            raise RequestError(f"{len(items)} prompts were given; at most {MAX_PROMPTS}", "prompt")
        ids = [item for item in items if not isinstance(item, str)]
        for item in ids:
            check_ids(item, limits.vocab_size, "prompt")
        return ids, [item for item in items if isinstance(item, str)]

    ids, texts = await off_loop(_num_ids(prompt), sort_out)
    return ids or await _encode_texts(tokenizer, limits, texts, add_special_tokens)


def _num_ids(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return 0
    return len(prompt) + sum(len(item) for item in prompt[:MAX_PROMPTS] if isinstance(item, list))


async def packed(prompts: Sequence[Sequence[int]]) -> list[bytes]:
    """Each prompt as little-endian int32, the form in which it goes to the engine."""

    def pack() -> list[bytes]:
        return [np.asarray(prompt, dtype="<i4").tobytes() for prompt in prompts]

    return await off_loop(sum(map(len, prompts)), pack)


async def encode_text(tokenizer: Tokenizer, limits: Limits, text: str, add_special_tokens: bool) -> list[int]:
    """Token ids of a text; refuses one that is too long whatever its tokens are, before tokenising it."""
    return (await _encode_texts(tokenizer, limits, [text], add_special_tokens))[0]


async def _encode_texts(
    tokenizer: Tokenizer, limits: Limits, texts: Sequence[str], add_special_tokens: bool
) -> list[list[int]]:
    for text in texts:
        _check_chars(limits, len(text))

    def encode() -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    return await off_loop(sum(map(len, texts)), encode)


def context_length(limits: Limits) -> str:
    """The words on which litellm and others shorten a conversation."""
    return f"This model's maximum context length is {limits.max_model_len} tokens (max_model_len)"


def _check_chars(limits: Limits, chars: int) -> None:
    if limits.max_prompt_chars is not None and chars > limits.max_prompt_chars:
        raise RequestError(
            f"{context_length(limits)}, but the prompt has {chars} characters, more than they can hold",
            "prompt",
        )


def _as_items(prompt: Prompt) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("the prompt is empty", "prompt")
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    if len(kinds) == 1:
        return [item for item in prompt if isinstance(item, (str, list))]
    raise RequestError("the items of prompt must be of one kind: texts, token ids or lists of ids", "prompt")


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises RequestError for an id outside the vocabulary."""
    highest = max(ids, default=0)
    if highest >= vocab_size:
        raise RequestError(f"token id {highest} is not below the vocabulary size {vocab_size}", param)


def truncated(ids: list[int], body: SamplingFields, limits: Limits, max_tokens: int | None) -> list[int]:
    """The prompt's tokens, cut to truncate_prompt_tokens; for -1 to as many as leave room for `max_tokens`.

    Raises RequestError.
    """
    keep = body.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep == 0:
        raise RequestError("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
    count = keep if keep > 0 else max(1, limits.max_model_len - (max_tokens or 1))
    return ids[:count] if body.truncation_side == "right" else ids[-count:]


def check_length(prompt_len: int, limits: Limits) -> None:
    """Raises RequestError for an empty prompt and for one that leaves no room to generate."""
    if prompt_len == 0:
        raise RequestError("the prompt has no tokens; at least one is needed", "prompt")
    if prompt_len >= limits.max_model_len:
        raise RequestError(
            f"{context_length(limits)}, but the prompt has {prompt_len}; shorten it, or set truncate_prompt_tokens",
            "prompt",
        )


async def chat_prompt(
    tokenizer: Tokenizer,
    limits: Limits,
    body: ChatRequest | TokenizeRequest,
    server_template: str | None,
    trust_template: bool,
) -> list[int]:
    """Token ids of a rendered chat. Raises RequestError for what the template or the engine cannot take."""
    if body.chat_template is not None and not trust_template:
        raise RequestError(
            "a chat_template in the request is refused; start the server with trust_request_chat_template",
            "chat_template",
        )
    count = len(body.messages or ())
    if count > limits.max_model_len:
        raise RequestError(f"{context_length(limits)}, but there are {count} messages", "messages")
    messages = [_plain(index, message) for index, message in enumerate(body.messages or ())]
    continues = bool(body.continue_final_message)
    generation = body.add_generation_prompt if body.add_generation_prompt is not None else not continues
    if continues and generation:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
        )
    _check_chars(limits, sum(len(message.get("content") or "") for message in messages))
    tools = callable_tools(body)
    options: dict[str, Any] = {
        "template_kwargs": _template_options(body),
        "tools": tools,
        "add_generation_prompt": generation,
        "continue_final_message": continues,
        "chat_template": body.chat_template or server_template,
    }

    def encode() -> list[int]:
        text = tokenizer.render_chat(messages, **options)
        _check_chars(limits, len(text))  # tools and earlier calls are text, too
        return tokenizer.encode(text, add_special_tokens=False)

    try:
        ids = await off_loop(len(msgspec.json.encode((messages, tools))) + _MESSAGE_CHARS * count, encode)
    except RecursionError:
        raise RequestError(
            "the conversation is nested too deeply for the chat template", "messages"
        ) from None
    except UnicodeEncodeError:  # a call's arguments are JSON within JSON
        raise RequestError("the messages hold half of a surrogate pair: no text", "messages") from None
    if tools and isinstance(body, ChatRequest):
        require_readable(options["chat_template"] or tokenizer.chat_template, tokenizer.special_tokens)
    return ids


def callable_tools(body: ChatRequest | TokenizeRequest) -> list[dict[str, Any]] | None:
    """What the template is shown: a model that may call no tool need not read of any. Raises RequestError."""
    if not body.tools or (isinstance(body, ChatRequest) and body.tool_choice == "none"):
        return None
    check_tools(body.tools)
    return body.tools


# What transformers takes by these names is set by other fields, or not at all.
_RESERVED = frozenset({
    "messages", "conversation", "conversations", "tools", "chat_template", "tokenize", "return_tensors",
    "return_dict", "documents", "add_generation_prompt", "continue_final_message", "padding", "truncation",
    "max_length", "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip


def _template_options(body: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    options = dict(body.chat_template_kwargs or {})
    for name in options:
        if name in _RESERVED:
            raise RequestError(f"chat_template_kwargs may not set {name}", "chat_template_kwargs")
    if isinstance(body, ChatRequest) and body.reasoning_effort is not None:
        options.setdefault("reasoning_effort", body.reasoning_effort)
    return options


def _plain(index: int, message: Message) -> dict[str, Any]:
    """The mapping that chat templates expect; parts of text are joined by newlines."""
    plain: dict[str, Any] = msgspec.to_builtins(message)
    content = message.content
    if isinstance(content, list):
        content = "\n".join(_text(index, part) for part in content)
    plain["content"] = content if content is not None else ""
    if message.reasoning is not None:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = with_arguments_parsed(message.tool_calls)
    return plain


def _text(index: int, part: ContentPart | str) -> str:
    if isinstance(part, str):
        return part
    where = f"messages[{index}].content"
    if part.type not in _TEXT_PARTS:
        kind = part.type[:32]
        raise RequestError(
            f"content parts of type {kind!r} are not supported by this model; send text", where
        )
    if part.text is None:
        raise RequestError(f"a content part of type {part.type!r} needs its text", where)
    return part.text

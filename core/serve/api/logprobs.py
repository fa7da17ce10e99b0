"""Log-probabilities in the three shapes that clients know."""

from __future__ import annotations

from collections.abc import Sequence

from ...messages import Logprob
from ..text.detokenize import TokenText
from .replies import (
    ChatLogprob,
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
)

# JSON knows no infinity: a masked token's logprob is shown as OpenAI shows the impossible.
_LOWEST = -9999.0


class TokenNames:
    """How tokens are written in a reply."""

    def __init__(self, texts: TokenText, as_ids: bool) -> None:
        self._texts = texts
        self._as_ids = as_ids

    def name(self, token: int) -> str:
        """The token's text, or `token_id:N` where the client asked for ids.

        Part of a character is written as OpenAI does, `bytes:\\xf0\\x9f`: distinct tokens keep distinct names.
        """
        if self._as_ids:
            return f"token_id:{token}"
        raw = self._texts.bytes_of(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def bytes(self, token: int) -> list[int]:
        """Its UTF-8 bytes, exact even for half a character."""
        return list(self._texts.bytes_of(token))


def finite(logprob: float) -> float:
    """A number that JSON can hold."""
    return logprob if logprob > _LOWEST else _LOWEST  # also for NaN


def completion_logprobs(
    names: TokenNames, logprobs: Sequence[Logprob], offsets: Sequence[int], top: int
) -> CompletionLogprobs:
    """The `logprobs` of `/v1/completions`: the drawn token is always among `top_logprobs`."""
    reply = CompletionLogprobs()
    for entry, offset in zip(logprobs, offsets, strict=True):
        reply.text_offset.append(offset)
        reply.tokens.append(names.name(entry.token_ids[0]))
        reply.token_logprobs.append(finite(entry.logprobs[0]))
        pairs = zip(entry.token_ids[1 : top + 1], entry.logprobs[1 : top + 1], strict=True)
        alternatives: dict[str, float] = {}
        for token, value in pairs:
            alternatives.setdefault(names.name(token), finite(value))
        alternatives.setdefault(names.name(entry.token_ids[0]), finite(entry.logprobs[0]))
        reply.top_logprobs.append(alternatives)
    return reply


def echo_offsets(texts: TokenText, prompt: Sequence[int], echo_chars: int) -> list[int]:
    """Characters of the echo before each token; what the tokenizer put before a client's text takes no room."""
    detokenizer = texts.detokenizer((), skip_special_tokens=False)
    offsets: list[int] = []
    at = 0
    for token in prompt:
        offsets.append(at)
        at += len(detokenizer.push(token))
    at += len(detokenizer.finish())
    return [max(0, offset + echo_chars - at) for offset in offsets]


def echoed_logprobs(
    names: TokenNames, prompt: Sequence[int], offsets: Sequence[int], logprobs: Sequence[Logprob], top: int
) -> CompletionLogprobs:
    """The prompt's own, for `echo`: the first token has none."""
    rest = completion_logprobs(names, logprobs[: len(prompt) - 1], offsets[1 : len(logprobs) + 1], top)
    return CompletionLogprobs(
        list(offsets[: 1 + len(rest.tokens)]),
        [None, *rest.token_logprobs],
        [names.name(prompt[0]), *rest.tokens],
        [None, *rest.top_logprobs],
    )


def chat_logprobs(names: TokenNames, logprobs: Sequence[Logprob], top: int) -> ChatLogprobs:
    """The `logprobs` of `/v1/chat/completions`."""
    return ChatLogprobs([_chat_token(names, entry, top) for entry in logprobs])


def _chat_token(names: TokenNames, entry: Logprob, top: int) -> ChatTokenLogprob:
    token = entry.token_ids[0]
    alternatives = [
        ChatLogprob(names.name(other), finite(value), names.bytes(other))
        for other, value in zip(entry.token_ids[1 : top + 1], entry.logprobs[1 : top + 1], strict=True)
    ]
    return ChatTokenLogprob(names.name(token), finite(entry.logprobs[0]), names.bytes(token), alternatives)


def prompt_logprobs(names: TokenNames, logprobs: Sequence[Logprob], top: int) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: a mapping by token id per position, None for the first."""
    reply: PromptLogprobs = [None]
    for entry in logprobs:
        pairs = list(zip(entry.token_ids[1 : top + 1], entry.logprobs[1 : top + 1], strict=True))
        position = {
            token: PromptLogprob(finite(value), rank, names.name(token))
            for rank, (token, value) in enumerate(pairs, start=1)
        }
        own = entry.token_ids[0]
        position[own] = PromptLogprob(finite(entry.logprobs[0]), entry.rank, names.name(own))
        reply.append(position)
    return reply

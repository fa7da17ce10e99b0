"""From the fields of a request to sampling parameters: defaults, bounds that need the model, refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ...errors import RequestError
from ...request import SamplingParams
from ..text.generation import TextRules
from .prompts import Limits, Tokenizer, check_ids, context_length, off_loop
from .wire import ChatRequest, CompletionRequest, SamplingFields

# Fields the engine knows and cannot honour; a client that sets one must hear of it.
_REFUSED = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logits_processors",
    "prompt_embeds",
    "logprob_token_ids",
    "repetition_detection",
    "thinking_token_budget",
    "kv_transfer_params",
    "ec_transfer_params",
    "watermarking",
    "vllm_xargs",
    "use_beam_search",
)
_REFUSED_IN_CHAT = (
    "functions",
    "function_call",
    "audio",
    "documents",
    "web_search_options",
    "add_special_tokens",
)

# Keys of generation_config.json that are defaults of sampling.
DEFAULT_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

BadWords = tuple[tuple[int, ...], ...]

MAX_LISTED_IDS = 1 << 18  # of one HTTP request: a whole vocabulary, once
MAX_TOLD = 1 << 20  # log-probabilities of a prompt, over all choices
COMPLETION_MAX_TOKENS = 16  # OpenAI's default


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request gets where it says nothing."""

    values: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    most_tokens: int | None = None  # whatever a request asks for
    seed: int | None = None
    max_logprobs: int = 20
    stream_interval: int = 1

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any], **rest: Any) -> SamplingDefaults:
        """Defaults from a generation_config.json; unusable values are left out."""
        values = {key: float(config[key]) for key in DEFAULT_KEYS if is_usable(key, config.get(key))}
        if config.get("do_sample") is False:
            values = {key: value for key, value in values.items() if key == "repetition_penalty"}
        return cls(values=values, max_tokens=max_new_tokens(config), **rest)

    def number(self, name: str, given: float | None, otherwise: float) -> float:
        """The given value, else the model's default, else `otherwise`."""
        return given if given is not None else self.values.get(name, otherwise)


def max_new_tokens(config: Mapping[str, Any]) -> int | None:
    """The length that a generation_config.json names, if it is one."""
    limit = config.get("max_new_tokens")
    return limit if isinstance(limit, int) and limit > 0 else None


def is_usable(name: str, value: Any) -> bool:
    """Whether a request may ask for this value of a field that is a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        if not math.isfinite(value):
            return False
        msgspec.convert({name: value}, SamplingFields, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything a request says about its generation, checked."""

    params: SamplingParams
    rules: TextRules
    n: int
    top_logprobs: int | None  # alternatives per token to show; None is no logprobs
    prompt_logprobs: int | None
    echo: bool

    def for_choice(self, index: int) -> SamplingParams:
        """Parameters of the index-th of n sequences: one seed gives n different, repeatable texts. Only the first
        computes the prompt, so it alone can tell of its log-probabilities.
        """
        seed = self.params.seed
        if index == 0 or (seed is None and self.params.prompt_logprobs is None):
            return self.params
        seed = None if seed is None else (seed + index) & (2**63 - 1)
        return replace(self.params, seed=seed, prompt_logprobs=None)


def check_listed_ids(body: SamplingFields, bad_words: BadWords, sequences: int) -> None:
    """Raises RequestError where ids that each sequence carries would fill the engine's memory."""
    sizes = {
        "allowed_token_ids": len(body.allowed_token_ids or ()),
        "bad_words": sum(map(len, bad_words)),
    }
    if sum(sizes.values()) * sequences > MAX_LISTED_IDS:
        name = max(sizes, key=lambda name: sizes[name])
        raise RequestError(
            f"{name} has {sizes[name]} token ids, each for {sequences} sequences; at most {MAX_LISTED_IDS} in all",
            name,
        )


def wanted(
    body: CompletionRequest | ChatRequest,
    prompt_len: int,
    bad_words: BadWords,
    limits: Limits,
    defaults: SamplingDefaults,
) -> Wanted:
    """Checks and completes a request for one prompt. Raises RequestError naming the field at fault.

    bad_words: from `bad_word_ids`, which is worth doing once for all prompts.
    """
    refuse_unsupported(body)
    top_logprobs, prompt_logprobs = _logprobs(body, defaults.max_logprobs)
    _check_told(body, prompt_len, prompt_logprobs)
    limit, discard = _max_tokens(body, prompt_len, limits, defaults)
    min_tokens = body.min_tokens or 0
    if min_tokens > limit:
        raise RequestError(
            f"min_tokens is {min_tokens}; this answer may have {limit} tokens at most", "min_tokens"
        )
    stop_token_ids = _ids(body.stop_token_ids, "stop_token_ids", limits.vocab_size)
    params = SamplingParams(
        max_tokens=limit,
        min_tokens=min_tokens,
        temperature=defaults.number("temperature", body.temperature, 1.0),
        top_k=max(0, int(defaults.number("top_k", body.top_k, 0))),
        top_p=defaults.number("top_p", body.top_p, 1.0),
        min_p=defaults.number("min_p", body.min_p, 0.0),
        repetition_penalty=defaults.number("repetition_penalty", body.repetition_penalty, 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body, limits.vocab_size),
        allowed_token_ids=_ids(body.allowed_token_ids, "allowed_token_ids", limits.vocab_size),
        bad_words=bad_words,
        stop_token_ids=stop_token_ids,
        ignore_eos=bool(body.ignore_eos),
        seed=_seed(body, defaults),
        logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    rules = TextRules(
        stops=_stop_strings(body),
        stop_token_ids=stop_token_ids,
        keep_stop=bool(body.include_stop_str_in_output),
        min_tokens=min_tokens,
        stream_interval=defaults.stream_interval if body.stream else 0,
        discard_tokens=discard,
    )
    return Wanted(params, rules, body.n or 1, top_logprobs, prompt_logprobs, bool(body.echo))


def refuse_unsupported(body: SamplingFields) -> None:
    """Raises RequestError for a field that would change the answer and that the engine cannot honour."""
    names = _REFUSED + (_REFUSED_IN_CHAT if isinstance(body, ChatRequest) else ())
    for name in names:
        if getattr(body, name) not in (None, False, []):
            raise RequestError(f"{name} is not supported by this server", name)
    kind = (body.response_format or {"type": "text"}).get("type")
    if kind != "text":
        raise RequestError("response_format: only the type text is supported", "response_format")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError("best_of is not supported unless it equals n", "best_of")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    if isinstance(body, CompletionRequest) and body.suffix:
        raise RequestError("suffix is not supported by this server", "suffix")
    if isinstance(body, ChatRequest):
        _refuse_in_chat(body)


def _refuse_in_chat(body: ChatRequest) -> None:
    if body.tool_choice not in (None, "auto", "none"):
        raise RequestError("tool_choice may only be auto or none: tool calls are not enforced", "tool_choice")
    if body.modalities and body.modalities != ["text"]:
        raise RequestError("modalities: only text is supported", "modalities")


def _max_tokens(
    body: CompletionRequest | ChatRequest, prompt_len: int, limits: Limits, defaults: SamplingDefaults
) -> tuple[int, bool]:
    """(tokens to generate, whether they are to be thrown away)."""
    room = limits.max_model_len - prompt_len
    name, asked = "max_tokens", body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", body.max_completion_tokens
    if asked is None:
        fallback = COMPLETION_MAX_TOKENS if isinstance(body, CompletionRequest) else room
        return min(fallback, defaults.max_tokens or fallback, room), False
    if asked == 0 and isinstance(body, CompletionRequest) and body.echo:
        return 1, True
    if asked < 1:
        hint = " (0 needs echo: true)" if isinstance(body, CompletionRequest) else ""
        raise RequestError(f"{name} must be at least 1, got {asked}{hint}", name)
    if asked > room:
        raise RequestError(
            f"{context_length(limits)}, but {name} is {asked} and the prompt has {prompt_len}; at most {room} can "
            "be generated",
            name,
        )
    return min(asked, defaults.most_tokens or asked), False


def _logprobs(body: CompletionRequest | ChatRequest, most: int) -> tuple[int | None, int | None]:
    if isinstance(body, CompletionRequest):
        top, name = body.logprobs, "logprobs"
    else:
        if body.top_logprobs and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        top, name = (body.top_logprobs or 0) if body.logprobs else None, "top_logprobs"
    prompt = body.prompt_logprobs
    if prompt is None and body.echo and isinstance(body, CompletionRequest):
        prompt = top
    for field_name, value in ((name, top), ("prompt_logprobs", prompt)):
        if value is not None and value > most:
            raise RequestError(f"{field_name} {value} is more than {most} (max_logprobs)", field_name)
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError("prompt_logprobs cannot be streamed", "prompt_logprobs")
    return top, prompt


def _check_told(body: CompletionRequest | ChatRequest, prompt_len: int, alternatives: int | None) -> None:
    """Each choice of a completion tells the prompt's log-probabilities: a small request could ask for gigabytes."""
    n = body.n or 1
    if alternatives is None or n == 1 or isinstance(body, ChatRequest):
        return
    told = n * prompt_len * (alternatives + 1)
    if told > MAX_TOLD:
        raise RequestError(
            f"{told} log-probabilities of the prompt in n = {n} choices; at most {MAX_TOLD}", "n"
        )


def _seed(body: SamplingFields, defaults: SamplingDefaults) -> int | None:
    if body.seed is None or body.seed == -1:
        return defaults.seed
    return body.seed & (2**63 - 1)


def _stop_strings(body: SamplingFields) -> tuple[str, ...]:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if "" in stops:
        raise RequestError("a stop string may not be empty", "stop")
    return tuple(dict.fromkeys(stops))


def _ids(ids: list[int] | None, name: str, vocab_size: int) -> tuple[int, ...]:
    check_ids(ids or [], vocab_size, name)
    return tuple(dict.fromkeys(ids or []))


def _logit_bias(body: SamplingFields, vocab_size: int) -> dict[int, float]:
    bias = body.logit_bias or {}
    check_ids(list(bias), vocab_size, "logit_bias")
    if len(bias) > 1024:
        raise RequestError(f"logit_bias has {len(bias)} entries; at most 1024", "logit_bias")
    if any(map(math.isnan, bias.values())):
        raise RequestError("logit_bias has a value that is no number", "logit_bias")
    return {token: min(100.0, max(-100.0, value)) for token, value in bias.items()}  # cut as vLLM does


async def bad_word_ids(body: SamplingFields, tokenizer: Tokenizer) -> BadWords:
    """Token sequences of each word, at the start of a text and after a space (as vLLM does)."""
    words = [word.lstrip() for word in body.bad_words or ()]
    if "" in words:
        raise RequestError("a bad word may not be empty", "bad_words")
    texts = [text for word in words for text in (word, " " + word)]

    def encode() -> BadWords:
        found = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        return tuple(dict.fromkeys(ids for ids in found if ids))

    return await off_loop(sum(map(len, texts)), encode)

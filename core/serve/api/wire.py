"""The bodies that clients send: OpenAI's fields, and the extra ones that vLLM's users know.

Decoded by msgspec straight from the bytes: one pass, the first fault only, and never an echo of the input.
Absent and null mean the same. Unknown fields are ignored; known fields that the engine cannot honour are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_N = 128
MAX_DETOKENIZED = 1 << 17  # more would hold up the streams of others
MAX_INT32 = 2**31 - 1
MIN_REPETITION_PENALTY = 0.001  # logits divided by less leave float32's range

Text = Annotated[str, Meta(max_length=1024)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Prompt = str | list[str | TokenId | list[TokenId]]  # one kind of item at a time, checked in prompts.py


class StreamOptions(Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """What `/v1/completions` and `/v1/chat/completions` share. None is "not given"."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    # how tokens are drawn
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=100.0)] | None = None
    logit_bias: dict[TokenId, float] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: Annotated[list[Text], Meta(max_length=256)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    # when generation ends
    max_tokens: Annotated[int, Meta(le=MAX_INT32)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=64)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    ignore_eos: bool | None = None
    # what comes back
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # how it is scheduled
    priority: Annotated[int, Meta(ge=-MAX_INT32, le=MAX_INT32)] | None = None
    tenant: Annotated[str, Meta(max_length=256)] | None = None
    deadline_ms: Annotated[float, Meta(gt=0.0, le=1e12)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None = None  # -1: to what fits
    truncation_side: Literal["left", "right"] | None = None  # left: the last tokens stay
    request_id: str | None = None  # an X-Request-Id wins
    # known, and refused unless they ask for nothing
    use_beam_search: bool | None = None
    best_of: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    logits_processors: Any = None
    logprob_token_ids: Any = None
    prompt_embeds: Any = None
    repetition_detection: Any = None
    thinking_token_budget: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    watermarking: Any = None
    vllm_xargs: Any = None


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: Prompt | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = None


class ContentPart(Struct):
    type: str
    text: str | None = None


class Message(Struct, omit_defaults=True):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart | str] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # a newer name of the same


class ChatRequest(SamplingFields, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None  # for the template
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_completion_tokens: Annotated[int, Meta(le=MAX_INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    echo: bool | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    documents: Any = None
    web_search_options: Any = None


class TokenizeRequest(Struct, kw_only=True):
    """`/tokenize`: a prompt, or chat messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeRequest(Struct, kw_only=True):
    model: str | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_DETOKENIZED)]

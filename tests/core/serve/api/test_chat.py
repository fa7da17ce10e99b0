"""`/v1/chat/completions`, through the official client where it can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from serve_support import Running, events, running_server, write_tokenizer

PATH = "/v1/chat/completions"
USER: Any = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="fake-model", messages=USER, temperature=0)
    choice = reply.choices[0]
    assert choice.message.content == "the quick brown fox"
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert reply.id.startswith("chatcmpl-")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_streamed_chat(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="fake-model",
            messages=USER,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == "the quick brown fox"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 1


def test_token_ids_of_prompt_and_answer_are_told_in_streams_too(server: Running) -> None:
    body = {"messages": USER, "temperature": 0, "return_token_ids": True}
    whole = server.post(PATH, body).json()
    first, *rest = events(server.post(PATH, {**body, "stream": True}).text)
    assert (
        first["prompt_token_ids"]
        == whole["prompt_token_ids"]
        == server.tokenizer.encode("the quick brown fox")
    )
    assert not any("prompt_token_ids" in chunk for chunk in rest)
    streamed = [token for chunk in rest for token in chunk["choices"][0]["token_ids"]]
    assert streamed == whole["choices"][0]["token_ids"]


def test_chat_logprobs(client: openai.OpenAI, server: Running) -> None:
    reply = client.chat.completions.create(
        model="fake-model",
        messages=[{"role": "user", "content": "🚀"}],
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    assert reply.choices[0].message.content == "🚀"
    content = reply.choices[0].logprobs and reply.choices[0].logprobs.content
    assert content
    assert b"".join(bytes(t.bytes or []) for t in content).startswith("🚀".encode())
    assert all(len(t.top_logprobs) == 2 for t in content)
    without = client.chat.completions.create(model="fake-model", messages=USER, temperature=0, logprobs=True)
    assert without.choices[0].logprobs
    assert without.choices[0].logprobs.content
    assert without.choices[0].logprobs.content[0].top_logprobs == []


def test_stop_seed_and_n(client: openai.OpenAI) -> None:
    def draw(**fields: Any) -> list[str | None]:
        reply = client.chat.completions.create(model="fake-model", messages=USER, max_tokens=8, **fields)
        return [choice.message.content for choice in reply.choices]

    assert draw(temperature=0, stop=["quick"]) == ["the "]
    assert draw(temperature=1, seed=5, n=2) == draw(temperature=1, seed=5, n=2)
    assert len(set(draw(temperature=1, seed=5, n=3))) > 1


def test_max_completion_tokens_wins(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="fake-model", messages=USER, temperature=0, max_completion_tokens=2, max_tokens=5
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2
    assert reply.choices[0].finish_reason == "length"


def test_no_limit_is_the_room_left(server: Running) -> None:
    reply = server.post(PATH, {"messages": USER, "temperature": 0, "ignore_eos": True}).json()
    assert reply["usage"]["total_tokens"] == 256


def test_parts_of_text_are_joined(client: openai.OpenAI) -> None:
    parts: Any = [
        {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]}
    ]
    reply = client.chat.completions.create(model="fake-model", messages=parts, temperature=0)
    assert reply.choices[0].message.content == "ab\ncd"
    parts[0]["content"][0] = "ab"
    reply = client.chat.completions.create(model="fake-model", messages=parts, temperature=0)
    assert reply.choices[0].message.content == "ab\ncd"


def test_no_alternatives_need_no_logprobs(server: Running) -> None:
    reply = server.post(PATH, {"messages": USER, "logprobs": False, "top_logprobs": 0})
    assert reply.json()["choices"][0]["logprobs"] is None


def test_the_template_is_told_of_reasoning(tmp_path: Path) -> None:
    template = "{{ messages[0].reasoning_content }} {{ reasoning_effort }}"
    messages = [{"role": "user", "content": "x", "reasoning": "quick"}]
    with running_server(write_tokenizer(tmp_path), chat_template=template) as server:
        reply = server.post(PATH, {"messages": messages, "reasoning_effort": "low", "temperature": 0}).json()
    assert reply["choices"][0]["message"]["content"] == "quick low"


def test_continue_final_message(server: Running) -> None:
    messages = [*USER, {"role": "assistant", "content": " jumps"}]
    fields = {"messages": messages, "temperature": 0, "continue_final_message": True, "echo": True}
    reply = server.post(PATH, fields).json()
    assert reply["choices"][0]["message"]["content"] == " jumps" + "the quick brown fox jumps"
    chunks = events(server.post(PATH, {**fields, "stream": True}).text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": " jumps"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}] * 300}, "messages"),
        ({"messages": [{"role": "evil", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "prompt"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [{}]}, "functions"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"request_id": "no/name"}, "request_id"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "no such choice"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 10**6}, "max_completion_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_refusals_name_the_field(server: Running, fields: dict[str, Any], param: str) -> None:
    reply = server.post(PATH, {"messages": USER, **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert reply.json()["error"]["type"] == "BadRequestError"


def test_tools_that_may_not_be_called_need_no_template(server: Running) -> None:
    reply = server.post(PATH, {"messages": USER, "tools": [{"type": "function"}], "tool_choice": "none"})
    assert reply.status_code == 200


def test_without_a_chat_template(tmp_path: Path) -> None:
    with running_server(write_tokenizer(tmp_path, template=None)) as server:
        refused = server.post(PATH, {"messages": USER})
        assert refused.status_code == 400
        assert "chat template" in refused.json()["error"]["message"]
        assert server.post("/v1/completions", {"prompt": "hi"}).status_code == 200
    template = "{{ messages[0].content }}!"
    with running_server(tmp_path, chat_template=template) as server:
        reply = server.post(PATH, {"messages": USER, "temperature": 0}).json()
        assert reply["choices"][0]["message"]["content"] == "the quick brown fox!"

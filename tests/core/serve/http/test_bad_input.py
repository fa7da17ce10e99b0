"""Garbage in: a 4xx in OpenAI's shape, small, without the input in it, and the server answers the next request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve_support import Running

from camshaft.core.serve.api.wire import CompletionRequest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def send(server: Running, body: bytes, path: str = COMPLETIONS, headers: dict[str, str] | None = None) -> Any:
    return server.client.post(path, content=body, headers=headers or JSON)


def check_error(reply: Any, status: int = 400) -> dict[str, Any]:
    assert reply.status_code == status, reply.text[:300]
    assert len(reply.content) <= 65536
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]
    return error


@pytest.fixture(autouse=True)
def alive_afterwards(server: Running) -> Iterator[None]:
    yield
    assert server.get("/health").status_code == 200
    reply = server.post(COMPLETIONS, {"prompt": "ok", "temperature": 0})
    assert reply.json()["choices"][0]["text"] == "ok"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{'prompt': 'x'}",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b"\x00\x01\x02",
        b"[" * 100_000,
        b'{"guided_json":' + b'{"a":' * 50_000,
        b'{"messages":[{"role":"user","tool_calls":' + b"[" * 100_000,
        b'{"prompt": "x"} trailing',
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_garbage(server: Running, body: bytes, path: str) -> None:
    check_error(send(server, body, path))


@given(st.binary(max_size=64))
@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_bytes(server: Running, body: bytes) -> None:
    assert send(server, body).status_code in (400, 200)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.integers(-5, 400), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
_NAMES = st.sampled_from(sorted(CompletionRequest.__struct_fields__))


@given(st.dictionaries(_NAMES, _VALUES, max_size=4))
@settings(
    max_examples=120,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_fields(server: Running, fields: dict[str, Any]) -> None:
    """Whatever the values are: an answer or an explained refusal."""
    reply = server.post(COMPLETIONS, {"prompt": "ab", "max_tokens": 2, **fields})
    if reply.status_code != 200:
        check_error(reply)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": "x" * 300}),
        (COMPLETIONS, {"prompt": "x" * 100_000}),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 256}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 100_000}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 300}),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_context_that_is_too_long_is_said_in_the_words_that_clients_look_for(
    server: Running, path: str, fields: dict[str, Any], streamed: bool
) -> None:
    """litellm and agents built on it shorten the conversation on these words, and on no others."""
    reply = server.post(path, {**fields, "stream": streamed})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("This model's maximum context length is 256 tokens")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 10**30}, "seed"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "nan"}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x" * 2000]}, "stop[0]"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"guided_json": {}}, "guided_json"),
        ({"truncation_side": "up"}, "truncation_side"),
        ({"watermarking": True}, "watermarking"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ["a"] * 300}, "prompt"),
        ({"prompt": "x " * 5000}, "prompt"),
        ({"prompt": [5] * 256}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 128}, "n"),
        ({"prompt": ["a"] * 8, "n": 128, "allowed_token_ids": list(range(300))}, "allowed_token_ids"),
        ({"n": 16, "bad_words": [f"{i:03}" * 300 for i in range(256)]}, "bad_words"),
    ],
)
def test_refusals_name_the_field(server: Running, fields: dict[str, Any], param: str) -> None:
    error = check_error(server.post(COMPLETIONS, {"prompt": "x", **fields}))
    assert error["type"] == "BadRequestError"
    assert error["param"] == param


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "messages", "is missing"),
        ({"messages": [{}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content", "its text"),
    ],
)
def test_what_is_missing_is_named(server: Running, body: dict[str, Any], param: str, says: str) -> None:
    error = check_error(server.post(CHAT, body))
    assert error["param"] == param
    assert says in error["message"]


def test_echo_is_advised_only_where_there_is_one(server: Running) -> None:
    for path, advised in ((COMPLETIONS, True), (CHAT, False)):
        body = {"prompt": "x", "messages": [{"role": "user", "content": "a"}], "max_tokens": 0}
        assert ("echo" in check_error(server.post(path, body))["message"]) == advised


def test_a_byte_order_mark_is_no_fault(server: Running) -> None:
    """Windows' tools write one before what they send from a file."""
    assert send(server, b'\xef\xbb\xbf{"prompt": "x", "max_tokens": 1}').status_code == 200


def test_what_asks_for_nothing_is_not_refused(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "functions": [], "max_tokens": 1}
    assert server.post(CHAT, body).status_code == 200


def test_error_body_does_not_grow_with_the_request(server: Running) -> None:
    secret = "do-not-repeat-me" * 4
    body = {"messages": [{"role": "user", "content": {"deep": secret}} for _ in range(2000)]}
    reply = server.post(CHAT, body)
    check_error(reply)
    assert len(reply.content) < 1024
    assert secret not in reply.text


def test_unknown_model(server: Running) -> None:
    error = check_error(
        server.post(CHAT, {"model": "x" * 5000, "messages": [{"role": "user", "content": "a"}]}), 404
    )
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    assert len(error["message"]) < 300
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="fake-model", prompt="x", temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


def test_unknown_fields_are_ignored(server: Running) -> None:
    reply = server.post(COMPLETIONS, {"prompt": "x", "made_up": {"a": 1}, "store": True, "metadata": {}})
    assert reply.status_code == 200


@pytest.mark.parametrize("value", [b"1e999", b"9" * 5000])
def test_numbers_out_of_range(server: Running, value: bytes) -> None:
    check_error(send(server, b'{"prompt": "x", "temperature": ' + value + b"}"))
    check_error(send(server, b'{"prompt": "x", "seed": ' + value + b"}"))


def test_wrong_content_type(server: Running) -> None:
    body = json.dumps({"prompt": "x"}).encode()
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
        check_error(send(server, body, headers={"content-type": kind}), 415)
    assert send(server, body, headers={"content-type": "application/json; charset=utf-8"}).status_code == 200
    assert send(server, body, headers={"content-type": ""}).status_code in (200, 415)


def test_head_is_get_without_a_body(server: Running) -> None:
    for path in ("/health", "/version", "/v1/models", "/metrics"):
        reply = server.client.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
    check = server.client.head(COMPLETIONS)
    assert (check.status_code, check.content) == (405, b"")


def test_paths_and_methods(server: Running) -> None:
    check_error(server.get("/v2/none"), 404)
    check_error(server.get(COMPLETIONS), 405)


def test_an_engine_s_refusal_reaches_the_client(refusing: Running) -> None:
    for fields in ({}, {"stream": True}):
        error = check_error(refusing.post(COMPLETIONS, {"prompt": [7, 8], **fields}))
        assert (error["param"], error["message"]) == ("prompt", "the engine does not like this prompt")
    assert refusing.post(COMPLETIONS, {"prompt": [8, 7]}).status_code == 200


def test_large_bodies_and_long_but_bounded_heads_are_taken(server: Running) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1, "user": "u" * 300_000}).encode()
    for _ in range(2):  # on one connection
        assert send(server, body, headers={**JSON, "x-long": "y" * 30_000}).status_code == 200


def test_a_fault_of_ours_is_500_without_its_story(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise ValueError("the inside of the server")

    monkeypatch.setattr("camshaft.core.serve.app.completions", broken)
    error = check_error(server.post(COMPLETIONS, {"prompt": "x"}, headers={"x-request-id": "who"}), 500)
    assert "inside" not in error["message"]
    assert "who" in error["message"]
    monkeypatch.undo()


def test_nesting_that_the_template_cannot_take(server: Running) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    body = {
        "messages": [{"role": "user", "content": "a", "tool_calls": [{"deep": deep}]}],
        "tools": [{"x": deep}],
    }
    reply = server.post(CHAT, body)
    assert reply.status_code in (200, 400)

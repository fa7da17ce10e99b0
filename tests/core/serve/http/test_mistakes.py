"""What a client is told of a body that cannot be read: the field, and what it must be, in JSON's words."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import RequestError
from camshaft.core.serve.api.wire import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from camshaft.core.serve.http.body import decode

HELLO = [{"role": "user", "content": "hello"}]
KINDS = (ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest)


def refusal(body: bytes, kind: type[msgspec.Struct]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(body, kind)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": "hot"}, "temperature", "temperature must be a number, not a string"),
        ({"temperature": -1}, "temperature", "temperature must be at least 0"),
        ({"top_p": 0}, "top_p", "top_p must be more than 0"),
        ({"n": 0}, "n", "n must be at least 1"),
        ({"n": 1.5}, "n", "n must be an integer, not a decimal number"),
        ({"messages": None}, "messages", "messages must be an array, not null"),
        ({"messages": []}, "messages", "messages may not be empty"),
        ({"messages": ["hi"]}, "messages[0]", "messages[0] must be an object, not a string"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is missing"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "messages[0].content must be a string or an array, not an integer",
        ),
        ({"stop": ["a"] * 65}, "stop", "stop must have at most 64 items"),
        ({"tenant": "a" * 257}, "tenant", "tenant must have at most 256 characters"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "a key of logit_bias must be an integer, not a string"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "a value of logit_bias must be a number, not a string"),
        ({"logprobs": 3}, "logprobs", "logprobs must be true or false, not an integer"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(msgspec.json.encode({"messages": HELLO, **fields}), ChatRequest)
    assert (error.param, str(error)) == (param, message)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", None, "the body is not valid JSON: it is empty"),
        (b"[]", None, "the body must be an object, not an array"),
        (b"{}", "messages", "messages is missing"),
        (b'{"a": NaN}', None, "the body is not valid JSON: invalid character (byte 6)"),
    ],
)
def test_a_body_that_is_no_request(body: bytes, param: str | None, message: str) -> None:
    error = refusal(body, ChatRequest)
    assert (error.param, str(error)) == (param, message)


def test_a_value_that_is_not_among_the_known_ones_is_not_repeated() -> None:
    error = refusal(b'{"prompt": "x", "truncation_side": "<script>"}', CompletionRequest)
    assert (error.param, str(error)) == ("truncation_side", "truncation_side must be left or right")


class _Chosen(msgspec.Struct):
    side: Literal["left", "right"]
    within: list[_Chosen] = []


def test_a_choice_is_told_wherever_it_stands() -> None:
    assert str(refusal(b'{"side": "x"}', _Chosen)) == "side must be left or right"
    nested = refusal(b'{"side": "left", "within": [{"side": "x"}]}', _Chosen)
    assert str(nested) == "within[0].side must be one of the known values"


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(max_size=3) | st.just("role"), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.data())
@settings(max_examples=300, derandomize=True, deadline=None)
def test_no_word_of_the_decoder_reaches_a_client(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    fields = data.draw(st.dictionaries(st.sampled_from(kind.__struct_fields__), _VALUES, max_size=3))
    try:
        decode(msgspec.json.encode(fields), kind)
        return
    except RequestError as error:
        message, param = str(error), error.param
    assert not any(word in message for word in ("`", "$", "Expected", "[...]", "is not usable"))
    assert param is not None
    assert param in message

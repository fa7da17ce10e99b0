"""Tool calls: read out of the text whatever its pieces, told as the openai client knows them, refused where unreadable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_support import TEMPLATE, Running, running_server, write_tokenizer

from camshaft.core.errors import RequestError
from camshaft.core.serve.api.tools import ToolCallReader, require_readable, with_arguments_parsed

PATH = "/v1/chat/completions"
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
# The fake engine says what the prompt says, so the conversation itself is the answer.
WITH_TOOLS = TEMPLATE + "{% if tools %}{# calls go between <tool_call> and </tool_call> #}{% endif %}"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'


def read(pieces: list[str], most: int | None = None) -> tuple[str, list[tuple[str, Any]]]:
    reader = ToolCallReader(most)
    readings = [*(reader.push(piece) for piece in pieces), reader.finish()]
    calls = [
        (call.function.name, json.loads(call.function.arguments))
        for reading in readings
        for call in reading.calls
    ]
    assert reader.num_calls == len(calls)
    return "".join(reading.text for reading in readings), calls


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("no call at all", "no call at all", []),
        (CALL, "", [("weather", {"city": "Zürich"})]),
        (
            f"Let me see. {CALL}\n{OTHER}\n",
            "Let me see. ",
            [("weather", {"city": "Zürich"}), ("weather", {})],
        ),
        (f"\n\n{OTHER}\n", "", [("weather", {})]),
        (f"{OTHER} and more", " and more", [("weather", {})]),
        ("  plain, with space  ", "  plain, with space  ", []),
        ("<tool_call>no JSON</tool_call> so", "<tool_call>no JSON</tool_call> so", []),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        (OTHER.removesuffix("</tool_call>"), "", [("weather", {})]),
        ('<tool_call>{"name": "wea', '<tool_call>{"name": "wea', []),
        ("a < b, <tool", "a < b, <tool", []),
        ('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "", [("f", {"x": 1})]),
        ("<tool_call>" + "[" * 5000, "<tool_call>" + "[" * 5000, []),
        (" <tool_call>", " <tool_call>", []),
        (f" {OTHER}\n<tool_call>x", "\n<tool_call>x", [("weather", {})]),
        *(
            (f"<tool_call>{none}</tool_call>", f"<tool_call>{none}</tool_call>", [])
            for none in (
                '{"name": "", "arguments": {}}',
                '{"name": "f", "arguments": [1]}',
                '{"name": "f", "arguments": {"x": NaN}}',
                '{"name": "f", "arguments": {"x": 1e999}}',
                '{"name": "f", "arguments": {"x": "\\ud800"}}',
                '{"name": "\\ud800", "arguments": "{}"}',
            )
        ),
    ],
)
def test_what_is_text_and_what_is_a_call(text: str, said: str, calls: list[Any]) -> None:
    assert read([text]) == (said, calls)
    assert read(list(text)) == (said, calls)


@given(
    st.lists(
        st.sampled_from([CALL, OTHER, "<tool_call>", "</tool_call>", "<", "tool", " ", "\n", "word", "{}"])
    ),
    st.data(),
)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_pieces_do_not_matter(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == read([text])


def test_nothing_of_a_tag_goes_out_early_and_nothing_else_is_held() -> None:
    reader = ToolCallReader()
    assert [reader.push(piece).text for piece in ("Yes: <", "tool", "s are", " <tool_", "call>")] == [
        "Yes: ",
        "",
        "<tools are",
        " ",
        "",
    ]


def test_only_one_where_one_is_wanted() -> None:
    assert read([CALL + OTHER], most=1) == ("", [("weather", {"city": "Zürich"})])


def test_earlier_calls_are_shown_to_templates_as_objects() -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": '{"x": [1]}'}}, {"function": {"name": "g"}}]
    assert with_arguments_parsed(calls) == [
        {"id": "a", "function": {"name": "f", "arguments": {"x": [1]}}},
        {"function": {"name": "g"}},
    ]
    for odd in ("not JSON", "[1]"):
        (call,) = with_arguments_parsed([{"function": {"arguments": odd}}])
        assert call["function"]["arguments"] == odd


@pytest.mark.parametrize("template", [None, "{{ tools }}", "{{ tools }} <tool_call><function=x>"])
def test_a_form_that_is_not_read_is_refused(template: str | None) -> None:
    with pytest.raises(RequestError, match="cannot be read") as caught:
        require_readable(template)
    assert caught.value.param == "tools"
    require_readable("{{ tools }} <tool_call>")
    with pytest.raises(RequestError, match="cannot be read"):
        require_readable("{{ tools }} <tool_call>", {"<tool_call>"})  # hidden from the text


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = write_tokenizer(tmp_path_factory.mktemp("tools"), WITH_TOOLS)
    with running_server(folder, {"max_model_len": 1024, "num_blocks": 256}) as running:
        yield running


@pytest.fixture(scope="module")
def client(tooled: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tooled.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def said(text: str) -> Any:
    return {"model": "fake-model", "messages": [{"role": "user", "content": text}], "temperature": 0}


def test_calls_as_the_openai_client_sees_them(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**said(f"Let me see. {CALL}{OTHER}"), tools=TOOLS).choices[0]
    assert (reply.finish_reason, reply.message.content) == ("tool_calls", "Let me see. ")
    calls: Any = reply.message.tool_calls
    assert [(call.type, call.function.name) for call in calls] == [("function", "weather")] * 2
    assert json.loads(calls[0].function.arguments) == {"city": "Zürich"}
    assert calls[0].id != calls[1].id
    only = client.chat.completions.create(**said(CALL), tools=TOOLS).choices[0].message
    assert (only.content, len(only.tool_calls or ())) == (None, 1)


def test_streamed_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**said(f"Let me see. {CALL}{OTHER}"), tools=TOOLS) as stream:
        final: Any = stream.get_final_completion().choices[0]
    assert (final.finish_reason, final.message.content) == ("tool_calls", "Let me see. ")
    assert [json.loads(call.function.arguments) for call in final.message.tool_calls] == [
        {"city": "Zürich"},
        {},
    ]


def test_an_answer_without_a_call_is_as_ever(client: openai.OpenAI) -> None:
    extras: list[Any] = [{"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {}]
    for extra in extras:
        reply = client.chat.completions.create(**said("It is sunny."), **extra).choices[0]
        assert (reply.finish_reason, reply.message.content) == ("stop", "It is sunny.")
        assert reply.message.tool_calls is None
    plain = client.chat.completions.create(**said(CALL)).choices[0]
    assert (plain.finish_reason, plain.message.content) == ("stop", CALL)


def test_a_call_that_was_cut_off_is_text(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**said(CALL), tools=TOOLS, max_tokens=12).choices[0]
    assert reply.finish_reason == "length"
    assert CALL.startswith(reply.message.content or "-")


@pytest.mark.parametrize(
    "tools",
    [
        [{}],
        [{"type": "function"}],
        [{"type": "code", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": 5}}],
    ],
)
def test_tools_that_are_none(tooled: Running, tools: list[Any]) -> None:
    refused = tooled.post(PATH, {**said("x"), "tools": tools})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


def test_a_result_goes_back_to_the_model(tooled: Running) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    reply = tooled.post(PATH, {"messages": messages, "tools": TOOLS, "temperature": 0}).json()
    assert reply["choices"][0]["message"]["content"] == "?sunny"


def test_tools_too_long_for_the_model_are_refused_before_they_are_tokenised(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    long: list[Any] = [{**TOOLS[0], "function": {"name": "weather", "description": "x" * 100_000}}]
    with running_server(write_tokenizer(tmp_path), chat_template=template) as server:
        refused = server.post(PATH, {**said("x"), "tools": long}).json()["error"]
        assert "characters" in refused["message"]
        assert server.post(PATH, said("x")).status_code == 200


@pytest.mark.parametrize(("escaped", "status"), [("\\ud800", 400), ("\\ud83d\\ude00", 200)])
def test_half_a_character_in_an_earlier_call_is_refused(
    model_folder: Path, escaped: str, status: int
) -> None:
    """Its arguments are JSON within JSON, of which the reading of the body sees only text."""
    call = {"type": "function", "function": {"name": "f", "arguments": f'{{"a": "{escaped}"}}'}}
    body = {"messages": [{"role": "assistant", "tool_calls": [call]}], "max_tokens": 1}
    with running_server(model_folder, chat_template="{{ messages[0].tool_calls | tojson }}") as server:
        reply = server.post(PATH, body)
    assert reply.status_code == status
    assert status == 200 or reply.json()["error"]["param"] == "messages"

"""Tool calls of a real model: it is shown two rounds of them and makes the third."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from serve_support import Running, running
from test_real_engine import real_parts

TEMPLATE = """{% if tools %}<|im_start|>system
You call functions. The functions are:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is written <tool_call>
{"name": NAME, "arguments": OBJECT}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' %}<tool_response>
{{ message.content }}
</tool_response>{% else %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% if not loop.last %}
{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Tells the {name} of a city", "parameters": parameters},
    }


def round_of(city: str) -> list[dict[str, Any]]:
    arguments = json.dumps({"city": city})
    calls = [
        {"id": f"{name}-{city}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for name in ("weather", "time")
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": content}
        for call, content in zip(calls, ("sunny, 20 degrees", "10:15"), strict=True)
    ]
    return [
        question(city),
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
        {"role": "assistant", "content": f"It is sunny in {city}, 20 degrees. It is 10:15."},
    ]


def question(city: str) -> dict[str, Any]:
    return {"role": "user", "content": f"What is the weather and the time in {city}?"}


MESSAGES: Any = [*round_of("Paris"), *round_of("Rome"), question("Berlin")]
ASK: dict[str, Any] = {"model": "demo", "tools": [tool("weather"), tool("time")], "temperature": 0}
EXPECTED = [("weather", {"city": "Berlin"}), ("time", {"city": "Berlin"})]


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Iterator[Running]:
    config = {"max_model_len": 1024, "max_num_batched_tokens": 256, "chat_template": TEMPLATE}
    with running(real_parts(demo_model, served_model_name="demo", **config)) as server:
        yield server


@pytest.fixture(scope="module")
def client(demo: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def named(calls: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls or ()]


def test_calls_go_out_and_their_results_come_back(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(messages=MESSAGES, max_tokens=80, **ASK).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert named(choice.message.tool_calls) == EXPECTED
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": content}
        for call, content in zip(choice.message.tool_calls or (), ("rain, 5 degrees", "11:30"), strict=True)
    ]
    told: Any = [*MESSAGES, choice.message.model_dump(exclude_none=True), *results]
    final = client.chat.completions.create(messages=told, max_tokens=40, **ASK).choices[0]
    assert final.finish_reason == "stop"
    assert "Berlin" in (final.message.content or "")
    assert "11:30" in (final.message.content or "")


def test_streamed_calls_come_one_by_one(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(messages=MESSAGES, max_tokens=80, stream=True, **ASK))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert named(deltas) == EXPECTED
    assert [delta.index for delta in deltas] == [0, 1]
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [
        "tool_calls"
    ]


def test_one_call_or_none(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        reply = client.chat.completions.create(messages=MESSAGES, max_tokens=80, **ASK, **fields)
        return reply.choices[0]

    assert named(ask(parallel_tool_calls=False).message.tool_calls) == EXPECTED[:1]
    none = ask(tool_choice="none")
    assert (none.finish_reason, none.message.tool_calls) == ("stop", None)
    for forced in ("required", {"type": "function", "function": {"name": "time"}}):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(tool_choice=forced)
        assert caught.value.param == "tool_choice"

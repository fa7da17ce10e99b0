"""`/v1/completions`, whole and streamed."""

from __future__ import annotations

from support import Running, events


def test_greedy_text_is_the_script(server: Running) -> None:
    reply = server.post("/v1/completions", {"prompt": "Hello, world!", "temperature": 0, "max_tokens": 99})
    assert reply.status_code == 200
    body = reply.json()
    assert body["choices"][0]["text"] == "Hello, world!"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["object"] == "text_completion"
    assert (
        body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    )


def test_stream_adds_up_to_the_whole(server: Running) -> None:
    body = {"prompt": "the quick brown fox", "temperature": 0, "max_tokens": 50}
    whole = server.post("/v1/completions", body).json()
    streamed = events(server.post("/v1/completions", {**body, "stream": True}).text)
    assert "".join(e["choices"][0]["text"] for e in streamed) == whole["choices"][0]["text"]
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(streamed) > 3

"""`/v1/completions`, whole and streamed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serve_support import Running, events

from camshaft.core.serve.api.logprobs import echo_offsets
from camshaft.core.serve.text.detokenize import TokenText

PATH = "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 60}


def ask(server: Running, prompt: Any, **fields: Any) -> dict[str, Any]:
    reply = server.post(PATH, {"prompt": prompt, **GREEDY, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(server: Running, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    reply = server.post(PATH, {"prompt": prompt, **GREEDY, "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events(reply.text)


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def test_greedy_text_and_usage(server: Running) -> None:
    body = ask(server, "Hello, world!")
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == ("Hello, world!", "stop", None)
    tokens = len(server.tokenizer.encode("Hello, world!"))
    assert body["usage"]["prompt_tokens"] == tokens
    assert body["usage"]["completion_tokens"] == tokens + 1
    assert body["usage"]["total_tokens"] == 2 * tokens + 1
    assert body["object"] == "text_completion"
    assert body["model"] == "fake-model"
    assert body["id"].startswith("cmpl-")


def test_default_is_sixteen_tokens(server: Running) -> None:
    body = server.post(PATH, {"prompt": "Hi", "temperature": 0, "ignore_eos": True}).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


def test_numbers_may_be_written_as_vllm_takes_them(server: Running) -> None:
    written = ask(server, "abcd", max_tokens="3", n=1.0, temperature="0", echo=1)["choices"][0]["text"]
    assert written == ask(server, "abcd", max_tokens=3, echo=True)["choices"][0]["text"]
    assert ask(server, "12", stop="2")["choices"][0]["text"] == "1"  # text stays text


def test_null_is_not_given(server: Running) -> None:
    nulls = dict.fromkeys(["n", "stop", "seed", "logprobs", "logit_bias", "stream", "top_k", "user"])
    assert ask(server, "abc", **nulls)["choices"][0]["text"] == "abc"


def test_stream_adds_up_to_the_whole(server: Running) -> None:
    chunks = stream(server, "the quick brown fox")
    assert text_of(chunks) == "the quick brown fox"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert len(chunks) > 2
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("text", ["🚀👩‍👩‍👧 日本語 é", "混ぜ🎉"])
def test_characters_split_over_tokens(server: Running, text: str) -> None:
    chunks = stream(server, text)
    assert not any("\ufffd" in choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert text_of(chunks) == ask(server, text)["choices"][0]["text"] == text


@pytest.mark.parametrize(
    ("options", "usages"),
    [(None, 0), ({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)],
)
@pytest.mark.parametrize("n", [1, 2])
def test_usage_chunk(server: Running, options: Any, usages: int, n: int) -> None:
    chunks = stream(server, "the lazy dog", stream_options=options, n=n)
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    assert len(with_usage) == usages
    if usages:
        assert chunks[-1] is with_usage[0]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == ask(server, "the lazy dog", n=n)["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk for chunk in chunks)


def test_usage_sums_over_choices(server: Running) -> None:
    one, three = ask(server, "brown fox"), ask(server, "brown fox", n=3)
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]


def test_several_prompts_and_n(server: Running) -> None:
    body = ask(server, ["ab", "cd"], n=2)
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd")]
    chunks = stream(server, ["ab", "cd"], n=2)
    assert [text_of(chunks, index) for index in range(4)] == ["ab", "ab", "cd", "cd"]


def test_token_prompts(server: Running) -> None:
    ids = server.tokenizer.encode("jumps over")
    assert ask(server, ids)["choices"][0]["text"] == "jumps over"
    assert [c["text"] for c in ask(server, [ids, ids[:1]])["choices"]] == ["jumps over", "ju"]


def test_echo(server: Running) -> None:
    assert ask(server, "Yes", echo=True)["choices"][0]["text"] == "YesYes"
    chunks = stream(server, "Yes", echo=True, logprobs=1)
    assert text_of(chunks) == "YesYes"
    tokens = [t for chunk in chunks for t in chunk["choices"][0]["logprobs"]["tokens"]]
    assert "".join(tokens).startswith("YesYes")


@pytest.mark.parametrize("prompt", ["a 🚀 fox", [256, 5, 257, 9], [5, 6]])
def test_offsets_of_an_echo_point_into_its_text(server: Running, prompt: Any) -> None:
    """Half characters take no room, and special tokens given as ids are shown."""
    choice = ask(server, prompt, echo=True, logprobs=1, max_tokens=3, ignore_eos=True)["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)


def test_offsets_of_an_echo_leave_out_what_the_tokenizer_put_before_it(server: Running) -> None:
    special, own = [257], server.tokenizer.encode("the dog")
    assert echo_offsets(TokenText(server.tokenizer), special + own, len("the dog"))[:2] == [0, 0]


@pytest.mark.parametrize("streamed", [False, True])
def test_zero_tokens_with_echo(server: Running, streamed: bool) -> None:
    fields = {"max_tokens": 0, "echo": True, "logprobs": 1}
    prompt = "Your answer: Yes"
    if streamed:
        chunks = stream(server, prompt, stream_options={"include_usage": True}, **fields)
        choice, usage = chunks[0]["choices"][0], chunks[-1]["usage"]
    else:
        body = ask(server, prompt, **fields)
        choice, usage = body["choices"][0], body["usage"]
    assert choice["text"] == prompt
    assert usage["completion_tokens"] == 0
    assert "".join(choice["logprobs"]["tokens"]) == prompt
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in choice["logprobs"]["token_logprobs"][1:])


def test_logprobs(server: Running) -> None:
    choice = ask(server, "the dog", logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    tokens = len(server.tokenizer.encode("the dog")) + 1  # and the end
    assert (
        len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(logprobs["token_logprobs"]) == tokens
    )
    assert logprobs["tokens"][-1] == "<|end|>"
    for offset, token in list(zip(logprobs["text_offset"], logprobs["tokens"], strict=True))[:-1]:
        assert choice["text"][offset:].startswith(token)
    assert all(2 <= len(alternatives) <= 3 for alternatives in logprobs["top_logprobs"])


def test_streamed_logprobs_are_the_whole_ones(server: Running) -> None:
    whole = ask(server, "over the lazy", logprobs=1)["choices"][0]["logprobs"]
    chunks = [c["choices"][0]["logprobs"] for c in stream(server, "over the lazy", logprobs=1)]
    for key in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [item for chunk in chunks for item in chunk[key]] == whole[key]


def test_prompt_logprobs_of_many_choices_are_bounded(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("camshaft.core.serve.api.params.MAX_TOLD", 1000)
    body = {"prompt": [5] * 100, "echo": True, "max_tokens": 1, "logprobs": 4}
    refused = server.post("/v1/completions", {**body, "n": 3})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n"
    for n, logprobs in ((1, 20), (2, 4), (3, None)):
        assert server.post("/v1/completions", {**body, "n": n, "logprobs": logprobs}).status_code == 200


def test_prompt_logprobs(server: Running) -> None:
    ids = server.tokenizer.encode("lazy dog")
    positions = ask(server, "lazy dog", prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    assert positions[0] is None
    assert len(positions) == len(ids)
    for token, position in zip(ids[1:], positions[1:], strict=True):
        assert position[str(token)]["rank"] == 1
        assert position[str(token)]["decoded_token"] == server.tokenizer.decode([token])


def test_token_ids_in_the_reply(server: Running) -> None:
    ids = server.tokenizer.encode("fox")
    choice = ask(server, "fox", return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == ids
    assert choice["token_ids"] == [*ids, server.tokenizer.eos_token_ids[0]]
    named = ask(server, "fox", logprobs=0, return_tokens_as_token_ids=True)["choices"][0]
    assert named["logprobs"]["tokens"][0] == f"token_id:{ids[0]}"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("stop", "keep", "text"),
    [("own f", False, "the quick br"), (["zzz", "ick"], False, "the qu"), (["ick"], True, "the quick")],
)
def test_stop_strings(server: Running, stop: Any, keep: bool, text: str, streamed: bool) -> None:
    fields = {"stop": stop, "include_stop_str_in_output": keep}
    if streamed:
        chunks = stream(server, "the quick brown fox", **fields)
        assert text_of(chunks) == text
        choice = chunks[-1]["choices"][0]
    else:
        choice = ask(server, "the quick brown fox", **fields)["choices"][0]
        assert choice["text"] == text
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == (stop if isinstance(stop, str) else stop[-1])


def test_an_unfinished_stop_string_is_text_after_all(server: Running) -> None:
    assert ask(server, "brown fox", stop="fox jumps")["choices"][0]["text"] == "brown fox"
    assert text_of(stream(server, "brown fox", stop="fox jumps")) == "brown fox"


def test_min_tokens_delays_stop_strings(server: Running) -> None:
    choice = ask(server, "ab ab ab ab", stop="ab", min_tokens=3)["choices"][0]
    assert choice["text"].startswith("ab")
    assert choice["finish_reason"] == "stop"
    ids = server.tokenizer.encode("the quick brown fox")
    begun = server.tokenizer.decode(ids[:2])  # of a stop string that the third token ends
    choice = ask(server, ids, stop=server.tokenizer.decode(ids[:3])[1:], min_tokens=2)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (begun[:1], "stop")


def test_stop_token_ids(server: Running) -> None:
    ids = server.tokenizer.encode("the quick brown fox")
    choice = ask(server, ids, stop_token_ids=[ids[2]])["choices"][0]
    assert choice["text"] == server.tokenizer.decode(ids[:2])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[2])


def test_the_model_s_own_end_is_no_stop_reason(server: Running) -> None:
    """As in vLLM: null, unless the client asked for that token to end it."""
    assert ask(server, "abc")["choices"][0]["stop_reason"] is None
    eos = server.tokenizer.eos_token_ids[0]
    asked = ask(server, "abc", stop_token_ids=[eos])["choices"][0]
    assert (asked["finish_reason"], asked["stop_reason"]) == ("stop", eos)


def test_a_stop_string_ends_the_engine_s_work(server: Running) -> None:
    ask(server, "the quick brown fox", stop="quick", max_tokens=200, ignore_eos=True)
    stats = server.get("/debug/stats").json()
    assert (stats["used_blocks"], stats["running"]) == (0, 0)


def test_seed_repeats_whatever_runs_beside(server: Running) -> None:
    def draw(seed: int | None, **more: Any) -> str:
        return ask(server, "the quick brown fox", temperature=0.8, seed=seed, **more)["choices"][0]["text"]

    alone = draw(1234)
    with ThreadPoolExecutor(9) as pool:
        texts = list(pool.map(draw, [1, 2, 3, 4, 1234, 5, 6, 7, 8]))
    assert texts[4] == alone
    assert len(set(texts)) > 1
    choices = ask(server, "the quick brown fox", temperature=0.8, seed=1234, n=2)["choices"]
    assert choices[0]["text"] == alone != choices[1]["text"]


def test_logit_bias_reaches_the_engine(server: Running) -> None:
    token = server.tokenizer.encode("x")[0]
    assert ask(server, "ab", logit_bias={str(token): 5}, max_tokens=3)["choices"][0]["text"] == "xxx"
    beyond = {str(token): 1e9, "5": -1e9}  # cut to 100 and -100, as vLLM does
    assert ask(server, "ab", logit_bias=beyond, max_tokens=3)["choices"][0]["text"] == "xxx"


def test_truncated_prompt(server: Running) -> None:
    ids = server.tokenizer.encode("the quick brown fox")
    body = ask(server, ids, truncate_prompt_tokens=2)
    assert body["usage"]["prompt_tokens"] == 2
    assert body["choices"][0]["text"] == server.tokenizer.decode(ids[-2:])
    first = ask(server, ids, truncate_prompt_tokens=2, truncation_side="right")
    assert first["choices"][0]["text"] == server.tokenizer.decode(ids[:2])
    fitting = ask(server, [5] * 400, truncate_prompt_tokens=-1, max_tokens=40)
    assert fitting["usage"]["prompt_tokens"] == 256 - 40
    refused = server.post(PATH, {"prompt": "x", "truncate_prompt_tokens": 0})
    assert refused.json()["error"]["param"] == "truncate_prompt_tokens"


def test_one_token_prompt(server: Running) -> None:
    ids = server.tokenizer.encode("x")
    assert len(ids) == 1
    assert ask(server, ids)["choices"][0]["text"] == "x"


def test_a_reply_of_many_logprobs_is_the_same(server: Running) -> None:
    """It is written in a thread; a short one is not."""
    body = {"prompt": "the quick brown fox", "temperature": 0, "logprobs": 3, "echo": True, "max_tokens": 5}
    one = server.post("/v1/completions", body).json()["choices"][0]
    many = server.post("/v1/completions", {**body, "prompt": [body["prompt"]] * 40}).json()["choices"]
    assert [choice["index"] for choice in many] == list(range(40))
    assert all({**choice, "index": 0} == one for choice in many)
    chat = {"messages": [{"role": "user", "content": body["prompt"]}], "logprobs": True, "top_logprobs": 3}
    chat |= {"temperature": 0, "max_tokens": 5}
    alone = server.post("/v1/chat/completions", chat).json()["choices"][0]
    together = server.post("/v1/chat/completions", {**chat, "n": 40}).json()["choices"]
    assert all({**choice, "index": 0} == alone for choice in together)

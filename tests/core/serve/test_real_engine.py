"""The whole way from HTTP to a real, tiny model and back."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serve_support import Running, events, eventually, running
from sizes import sizes_of

from camshaft.cli.explain import story
from camshaft.core.build import resolve_for_serving
from camshaft.core.config import load_config
from camshaft.core.serve.parts import Parts, parts_of

PATH = "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
PROMPTS = ["Hello", "The quick brown fox jumps over the lazy dog. " * 4, "1 + 1 =", "x"]


def real_parts(folder: Path, **config: Any) -> Parts:
    values = {
        "model": str(folder),
        "port": 0,
        "device": "cpu",
        "max_model_len": 512,
        "num_gpu_blocks_override": 80,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 48,  # small, so that prompts are cut
        "disable_uvicorn_access_log": True,
        "log_level": "warning",
        **config,
    }
    return parts_of(resolve_for_serving(load_config(values)), folder)


@pytest.fixture(scope="module")
def real(tiny_llama: Path) -> Iterator[Running]:
    with running(real_parts(tiny_llama, served_model_name="tiny")) as server:
        yield server


def ask(server: Running, prompt: Any, **fields: Any) -> dict[str, Any]:
    reply = server.post(PATH, {"prompt": prompt, **GREEDY, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def free_blocks(server: Running) -> int:
    return server.get("/debug/integrity").json()["free_blocks"]


def settled(server: Running) -> int:
    """Free blocks once nothing runs any more."""
    for _ in range(500):
        stats = server.get("/debug/stats").json()
        if not stats["running"] and not stats["waiting"]:
            break
        time.sleep(0.01)
    return free_blocks(server)


def test_greedy_tokens_are_those_of_transformers(real: Running, tiny_llama: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_llama)
    model.eval()
    with ThreadPoolExecutor(4) as pool:
        bodies = list(pool.map(lambda prompt: ask(real, prompt, return_token_ids=True), PROMPTS))
    for body in bodies:
        choice = body["choices"][0]
        ids = torch.tensor([choice["prompt_token_ids"]])
        with torch.no_grad():
            expected = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=12,
                min_new_tokens=12,
            )
        assert choice["token_ids"] == expected[0, ids.shape[1] :].tolist()


def test_streamed_and_whole_are_one(real: Running) -> None:
    for prompt in PROMPTS:
        chunks = events(real.post(PATH, {"prompt": prompt, **GREEDY, "stream": True}).text)
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text == ask(real, prompt)["choices"][0]["text"]


def test_seed_repeats_under_load(real: Running) -> None:
    def draw(seed: int) -> str:
        return ask(real, PROMPTS[1], temperature=0.8, seed=seed)["choices"][0]["text"]

    alone = draw(1234)
    with ThreadPoolExecutor(9) as pool:
        texts = list(pool.map(draw, [1, 2, 3, 4, 1234, 5, 6, 7, 8]))
    assert texts[4] == alone
    assert len(set(texts)) > 1


def test_logprobs_of_prompt_and_answer(real: Running) -> None:
    body = ask(real, "Your answer: Yes", max_tokens=0, echo=True, logprobs=1)
    logprobs = body["choices"][0]["logprobs"]
    assert body["choices"][0]["text"] == "".join(logprobs["tokens"]) == "Your answer: Yes"
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    long = ask(real, PROMPTS[1], echo=True, logprobs=0, max_tokens=2)["choices"][0]["logprobs"]
    assert len(long["tokens"]) == len(PROMPTS[1]) + 2
    best = ask(real, "Hello", logprobs=3)["choices"][0]["logprobs"]
    for value, alternatives in zip(best["token_logprobs"], best["top_logprobs"], strict=True):
        assert value == pytest.approx(max(alternatives.values()))


def test_n_shares_a_prompt(real: Running) -> None:
    body = ask(real, PROMPTS[1], n=3, temperature=1.0, seed=7)
    assert len({choice["text"] for choice in body["choices"]}) > 1
    assert body["usage"]["completion_tokens"] == 36
    again = ask(real, PROMPTS[1], n=3, temperature=1.0, seed=7)
    assert [c["text"] for c in again["choices"]] == [c["text"] for c in body["choices"]]


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_n_tells_the_prompts_logprobs(real: Running, stream: bool) -> None:
    body = {"prompt": ["ab" * 40, "cd"], **GREEDY, "n": 3, "logprobs": 1, "echo": True, "stream": stream}
    told: dict[int, list[str]] = {}
    reply = real.post(PATH, body)
    for part in events(reply.text) if stream else [reply.json()]:
        for choice in part["choices"]:
            told.setdefault(choice["index"], []).extend((choice["logprobs"] or {"tokens": []})["tokens"])
    assert [len(told[index]) for index in range(6)] == [92, 92, 92, 14, 14, 14]
    if not stream:
        choices = real.post(PATH, {**body, "prompt_logprobs": 2}).json()["choices"]
        assert [len(choice["prompt_logprobs"]) for choice in choices] == [80, 80, 80, 2, 2, 2]


def test_sharing_among_n_is_no_hit_of_the_cache(real: Running) -> None:
    usage = ask(real, "Of its own: " + PROMPTS[1], n=3)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_prefixes_are_reused_but_not_across_salts(real: Running) -> None:
    def cached(salt: str) -> int:
        usage = ask(real, PROMPTS[1] + "cache", cache_salt=salt)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [cached("a"), cached("b")] == [0, 0]
    assert cached("a") > 0


def test_what_a_request_can_never_get(real: Running) -> None:
    for fields in ({"prompt": "x" * 600}, {"prompt": "x", "max_tokens": 512}, {"prompt": [5000]}):
        assert real.post(PATH, fields).status_code == 400
    assert ask(real, "x")["choices"][0]["finish_reason"] == "length"


def test_nothing_leaks(real: Running) -> None:
    """Clients that leave, stop strings, refusals, n: the free blocks come back."""
    start = settled(real)
    body = {"prompt": PROMPTS[1], "temperature": 1.0, "max_tokens": 300, "ignore_eos": True}
    for fields in ({"stream": True}, {"stream": True, "n": 3}):
        with real.client.stream("POST", PATH, json={**body, **fields}) as reply:
            next(reply.iter_lines())
    ask(real, PROMPTS[0], stop=[chr(code) for code in range(32, 96)], max_tokens=60)
    real.post(PATH, {**body, "n": 0})
    assert settled(real) == start
    assert ask(real, "x")["usage"]["completion_tokens"] == 12


def test_explain_tells_chunks_and_tokens(real: Running) -> None:
    prompt = "No one has asked this before. " * 5
    real.post(PATH, {"prompt": prompt, **GREEDY}, headers={"x-request-id": "tell-me"})
    told = real.get("/debug/explain/tell-me").json()["sequences"]
    life = told["cmpl-tell-me-0"]
    chunks = [event for event in life["events"] if event["event"] == "chunk"]
    assert sum(chunk["tokens"] for chunk in chunks) + life["cached_tokens"] == len(prompt)
    assert len(chunks) > 1
    text = "\n".join(story("cmpl-tell-me-0", life))
    assert "admitted" in text
    assert "11 tokens, one a step" in text


def test_requests_are_scheduled_with_their_fields(real: Running) -> None:
    fields = {"priority": -3, "tenant": "blue", "deadline_ms": 60_000, "min_tokens": 2}
    real.post(PATH, {"prompt": "x", **GREEDY, **fields}, headers={"x-request-id": "fields"})
    life = real.get("/debug/explain/fields").json()["sequences"]["cmpl-fields-0"]
    assert (life["priority"], life["tenant"]) == (-3, "blue")


def test_one_request_id_twice_at_once(real: Running) -> None:
    def send(prompt: str) -> Any:
        return real.post(PATH, {"prompt": prompt, **GREEDY, "n": 2}, headers={"x-request-id": "same"}).json()

    with ThreadPoolExecutor(4) as pool:
        bodies = list(pool.map(send, PROMPTS))
    for prompt, body in zip(PROMPTS, bodies, strict=True):
        assert body["id"] == "cmpl-same"
        assert {choice["text"] for choice in body["choices"]} == {ask(real, prompt)["choices"][0]["text"]}
    assert len(real.get("/debug/explain/same").json()["sequences"]) == 2


def test_the_frontend_holds_nothing_of_200_requests_many_of_which_left(real: Running) -> None:
    # names and errors for `explain`, counts, the last figures
    remembered = ("client._ids", "service.faults", "metrics.http", "stats.")

    def held() -> dict[str, int]:
        eventually(lambda: real.get("/load").json() == {"server_load": 0})
        found = sizes_of(real.server._service, "service")
        return {path: size for path, size in found.items() if not any(name in path for name in remembered)}

    def one(number: int) -> None:
        rng = random.Random(number)
        body: dict[str, Any] = {
            "max_tokens": rng.randint(1, 60),
            "ignore_eos": True,
            "stream": rng.random() < 0.6,
        }
        if rng.random() < 0.5:
            path = PATH
            body |= {
                "prompt": rng.choice(PROMPTS),
                "n": rng.choice([1, 1, 3]),
                "logprobs": rng.choice([None, 2]),
            }
        else:
            path = "/v1/chat/completions"
            body |= {
                "messages": [{"role": "user", "content": rng.choice(PROMPTS)}],
                "stop": rng.choice([None, "e"]),
            }
        if rng.random() < 0.2:
            body["model"] = f"none {number}"
        sent = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(sent)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(real.url.rpartition(":")[2]))) as line:
            line.sendall(head.encode() + sent)
            stay = rng.random() < 0.5
            while line.recv(65536) and stay:
                pass

    one(0)
    before, blocks = held(), settled(real)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(200)))
    after = held()
    assert {path: (before.get(path), size) for path, size in after.items() if before.get(path) != size} == {}
    assert len(before) > 20
    assert settled(real) == blocks

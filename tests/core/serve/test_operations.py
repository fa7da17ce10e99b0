"""What operators use: models, tokens, health, keys, limits, metrics, explain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from serve_support import Running, events, running_server

from camshaft import __version__
from camshaft.core.errors import RequestError
from camshaft.core.messages import Stats
from camshaft.core.serve.http.faults import LatestFaults
from camshaft.core.serve.observe.metrics import Metrics, registry_of

COMPLETIONS = "/v1/completions"
SPLIT = (
    "le",
    "finished_reason",
    "sleep_state",
    "reason",
    "source",
)  # labels that tell samples of one name apart


def test_models(server: Running) -> None:
    cards = server.get("/v1/models").json()["data"]
    assert [(card["id"], card["object"], card["max_model_len"]) for card in cards] == [
        ("fake-model", "model", 256)
    ]
    assert server.get("/v1/models/fake-model").json()["id"] == "fake-model"
    assert server.get("/v1/models/").json() == server.get("/v1/models").json()


def test_version_and_health(server: Running) -> None:
    assert server.get("/version").json() == {"version": __version__}
    assert server.get("/health").status_code == server.get("/ping").status_code == 200
    assert server.post("/ping", None).status_code == 200


def test_load_counts_requests_in_flight(server: Running) -> None:
    assert server.get("/load").json() == {"server_load": 0}
    body = {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "n": 3, "stream": True}
    with server.client.stream("POST", COMPLETIONS, json=body) as reply:
        lines = reply.iter_lines()  # kept, for its end closes the connection
        next(lines)
        assert server.get("/load").json() == {"server_load": 1}


def test_tokenize_and_back(server: Running) -> None:
    ids = server.tokenizer.encode("Hello, 🚀")
    reply = server.post("/tokenize", {"prompt": "Hello, 🚀", "return_token_strs": True}).json()
    assert (reply["tokens"], reply["count"], reply["max_model_len"]) == (ids, len(ids), 256)
    assert len(reply["token_strs"]) == len(ids)
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": "Hello, 🚀"}
    chat = {"messages": [{"role": "user", "content": "Hello, 🚀"}]}
    assert server.post("/tokenize", chat).json()["tokens"] == ids
    assert server.post("/tokenize", {}).status_code == 400
    assert server.post("/detokenize", {"tokens": [10**6]}).status_code == 400


def test_request_id_is_honoured(server: Running) -> None:
    headers = {"x-request-id": "my-trace.1"}
    reply = server.post(COMPLETIONS, {"prompt": "x"}, headers=headers)
    assert reply.headers["x-request-id"] == "my-trace.1"
    assert reply.json()["id"] == "cmpl-my-trace.1"
    forged = server.post(COMPLETIONS, {"prompt": "x"}, headers={"x-request-id": "a b"})
    assert forged.headers["x-request-id"] != "a b"
    in_body = {"prompt": "x", "request_id": "my-own"}
    named = server.post(COMPLETIONS, in_body)
    assert (named.json()["id"], named.headers["x-request-id"]) == ("cmpl-my-own", "my-own")
    assert server.get("/debug/explain/my-own").status_code == 200
    assert server.post(COMPLETIONS, in_body, headers=headers).json()["id"] == "cmpl-my-trace.1"


def test_explain_of_many_sequences_waits_for_one_step(server: Running) -> None:
    server.post("/v1/completions", {"prompt": "a", "n": 128, "max_tokens": 1, "request_id": "many"})
    busy = {"prompt": "ab", "ignore_eos": True, "max_tokens": 250, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=busy) as stream:
        pieces = stream.iter_bytes()
        next(pieces)
        before = server.get("/debug/stats").json()["step"]
        assert len(server.get("/debug/explain/many").json()["sequences"]) == 128
        assert server.get("/debug/stats").json()["step"] - before < 60
        next(pieces)  # all the while


def test_explain(server: Running) -> None:
    server.post(COMPLETIONS, {"prompt": "abc", "temperature": 0, "n": 2}, headers={"x-request-id": "why"})
    for asked in ("cmpl-why", "why"):
        told = server.get(f"/debug/explain/{asked}").json()
        assert set(told["sequences"]) == {"cmpl-why-0", "cmpl-why-1"}
        assert len(told["sequences"]["cmpl-why-0"]["token_steps"]) > 1
    assert set(server.get("/debug/explain/cmpl-why-1").json()["sequences"]) == {"cmpl-why-1"}
    assert server.get("/debug/explain/nobody").status_code == 404


def test_explain_tells_what_a_request_was_refused_with(server: Running) -> None:
    name = {"x-request-id": "refused"}
    server.post(COMPLETIONS, {"prompt": "x", "n": 0}, headers=name)
    told = server.get("/debug/explain/refused").json()
    assert told["sequences"] == {}
    fault = {key: told["fault"][key] for key in ("status", "message", "param")}
    assert fault == {"status": 400, "message": "n must be at least 1", "param": "n"}
    server.post(COMPLETIONS, {"prompt": "x"}, headers=name)  # mended, under the same name
    told = server.get("/debug/explain/refused").json()
    assert set(told["sequences"]) == {"cmpl-refused-0"}
    assert told["fault"]["status"] == 400


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions"])
def test_a_refused_request_has_the_id_that_its_body_names(server: Running, path: str) -> None:
    name = f"named{len(path)}"
    messages = [{"role": "user", "content": "x"}]
    reply = server.post(path, {"model": "other", "messages": messages, "request_id": name})
    assert (reply.status_code, reply.headers["x-request-id"]) == (404, name)
    assert server.get(f"/debug/explain/{name}").json()["fault"]["status"] == 404


def test_what_refusals_are_remembered_is_bounded() -> None:
    faults = LatestFaults()
    for number in range(5000):
        faults.note(f"r{number}", RequestError("x" * 10_000))
    assert faults.get("r0") is None
    assert faults.get("r4999") is not None
    assert sum(len(told["message"]) for told in faults._told.values()) < 4 << 20


def test_openapi_describes_the_bodies(server: Running) -> None:
    document = server.get("/openapi.json").json()
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert {"prompt", "top_k", "cache_salt"} <= set(fields)
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatRequest"}


def test_cors_is_off(server: Running) -> None:
    reply = server.get("/health", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in reply.headers


def unannounced() -> Iterator[bytes]:
    """A body without a Content-Length."""
    yield b'{"prompt": "'
    for _ in range(64):
        yield b"x" * 1024
    yield b'"}'


def test_keys_limits_and_cors(model_folder: Path) -> None:
    with running_server(
        model_folder,
        api_key=("one", "two", "schlüssel"),
        served_model_name=("big", "small"),
        allowed_origins=("https://ui.example",),
        max_body_bytes=2048,
        enable_debug=False,
        disable_fastapi_docs=True,
    ) as server:
        body = {"model": "small", "prompt": "x", "temperature": 0}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic one"}):
            refused = server.post(COMPLETIONS, body, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "AuthenticationError"
        assert server.get("/debug/stats").status_code == 401
        assert server.get("/health").status_code == 200
        assert server.get("/metrics").status_code == 200
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="two", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["big", "small"]
            assert client.completions.create(model="small", prompt="x", temperature=0).model == "small"
        other = {b"authorization": "Bearer schlüssel".encode()}
        assert server.client.get("/v1/models", headers=other).status_code == 200
        key = {"authorization": "Bearer one"}
        assert server.get("/debug/stats", headers=key).status_code == 404
        assert server.get("/openapi.json", headers=key).status_code == 404
        large = server.post(COMPLETIONS, {"prompt": "x" * 4096}, headers=key)
        assert large.status_code == 413
        headers = {**key, "content-type": "application/json"}
        assert server.client.post(COMPLETIONS, content=unannounced(), headers=headers).status_code == 413
        ui = {"origin": "https://ui.example"}
        preflight = server.client.options(
            COMPLETIONS, headers={**ui, "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 200
        for reply in (preflight, server.post(COMPLETIONS, body, headers=ui)):  # a script may read why
            assert reply.headers["access-control-allow-origin"] == "https://ui.example"
        assert reply.status_code == 401
        assert "x-request-id" in reply.headers["access-control-expose-headers"]


@pytest.mark.filterwarnings("error")
def test_behind_a_proxy_with_a_prefix(model_folder: Path) -> None:
    """Whether it takes the prefix off or not; what is open without a key stays so."""
    with running_server(model_folder, root_path="/api/", api_key=("one",)) as server:
        for prefix in ("", "/api"):
            assert server.get(prefix + "/health").status_code == 200
            assert server.get(prefix + "/v1/models").status_code == 401
            keyed = server.get(prefix + "/v1/models", headers={"authorization": "Bearer one"})
            assert keyed.json()["data"][0]["id"] == "fake-model"
        assert server.get("/apiv1/models", headers={"authorization": "Bearer one"}).status_code == 404
        document = server.get("/openapi.json", headers={"authorization": "Bearer one"}).json()
        assert document["servers"] == [{"url": "/api"}]


def test_metrics(model_folder: Path) -> None:
    with running_server(model_folder) as server:
        for prompt in ("the quick", "brown fox"):
            server.post(COMPLETIONS, {"prompt": prompt, "temperature": 0, "max_tokens": 50})
        server.post(COMPLETIONS, {"prompt": "over", "temperature": 0, "max_tokens": 1})
        text = server.get("/metrics").text
    samples = {
        (sample.name, next((sample.labels[name] for name in SPLIT if name in sample.labels), "")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    value = {key: sample.value for key, sample in samples.items()}
    assert value["vllm:request_success_total", "stop"] == 2
    assert value["vllm:request_success_total", "length"] == 1
    assert value["vllm:engine_sleep_state", "awake"] == 1
    assert value["vllm:request_num_preemptions_bucket", "1.0"] == 3
    assert value["vllm:num_requests_running", ""] == value["vllm:kv_cache_usage_perc", ""] == 0
    assert value["vllm:time_to_first_token_seconds_count", ""] == 3
    assert value["vllm:e2e_request_latency_seconds_count", ""] == 3
    assert value["vllm:request_queue_time_seconds_sum", ""] == pytest.approx(0.003)
    generated = value["vllm:generation_tokens_total", ""]
    assert value["vllm:inter_token_latency_seconds_count", ""] == generated - 3
    assert value["vllm:request_generation_tokens_sum", ""] == generated
    assert value["vllm:request_params_max_tokens_bucket", "+Inf"] == 3
    assert value["vllm:request_params_max_tokens_bucket", "1.0"] == 1
    assert samples["vllm:generation_tokens_total", ""].labels == {"model_name": "fake-model", "engine": "0"}
    cache = samples["vllm:cache_config_info", ""].labels
    assert (cache["block_size"], cache["cache_dtype"]) == ("16", "auto")
    assert int(cache["kv_cache_size_tokens"]) == 16 * int(cache["num_gpu_blocks"])
    assert {name for name, _ in samples} >= {
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting_by_reason",
        "vllm:engine_sleep_state",
        "vllm:prompt_tokens_cached_by_source_total",
        "vllm:request_num_preemptions_bucket",
        "http_request_duration_seconds_bucket",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:request_prompt_tokens_bucket",
        "vllm:request_max_num_generation_tokens_bucket",
        "vllm:request_params_n_bucket",
        "vllm:iteration_tokens_total_bucket",
        "vllm:request_inference_time_seconds_bucket",
        "vllm:request_prefill_time_seconds_bucket",
        "vllm:request_decode_time_seconds_bucket",
        "vllm:request_time_per_output_token_seconds_bucket",
        "http_requests_total",
        "process_cpu_seconds_total",
    }


def test_stream_interval(model_folder: Path) -> None:
    body = {"prompt": "the quick brown fox", "temperature": 0, "max_tokens": 41, "ignore_eos": True}
    with running_server(model_folder, {"step_s": 0.005}, stream_interval=10) as server:
        chunks = events(server.post(COMPLETIONS, {**body, "stream": True, "return_token_ids": True}).text)
        whole = server.post(COMPLETIONS, body).json()["choices"][0]["text"]
    sizes = [len(chunk["choices"][0]["token_ids"]) for chunk in chunks]
    assert sum(sizes) == 41
    assert sizes[0] < 10  # the first token does not wait for others
    assert all(size >= 10 for size in sizes[1:-1])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


def test_what_the_executor_counts() -> None:
    metrics = Metrics("m")
    figures = {"graph_steps": 5, "eager_steps.prefill": 3, "eager_steps.too_large": 1, "out_of_memory": 2}
    metrics.take_stats(Stats(9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0.0, figures=figures))
    lines = generate_latest(registry_of(metrics)).decode().splitlines()
    for path, reason, count in (("graph", "", 5), ("eager", "prefill", 3), ("eager", "too_large", 1)):
        labels = f'engine="0",model_name="m",path="{path}",reason="{reason}"'
        assert f"camshaft:executor_steps_total{{{labels}}} {count}.0" in lines
    assert 'camshaft:out_of_memory_total{engine="0",model_name="m"} 2.0' in lines

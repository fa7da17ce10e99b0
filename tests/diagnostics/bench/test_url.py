"""A server driven by its URL: what it does well is measured, what it does badly is counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from camshaft.core.errors import EvidenceError
from camshaft.core.workload import Workload, load_workload
from camshaft.diagnostics.bench.url import Target, UrlRun, drive_url


def load(requests: int = 6, concurrency: int = 3, **keys: Any) -> Workload:
    return load_workload(
        {
            "arrival": {"kind": "closed", "concurrency": concurrency, "requests": requests},
            "input_tokens": 20,
            "output_tokens": 4,
            **keys,
        }
    )


class Server(ThreadingHTTPServer):
    """Answers completions; `behave` decides what happens to the n-th one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.behaviours: dict[int, str] = {}
        self.models: Any = {"data": [{"id": "served"}]}
        self.status = 200  # of the list of models
        self.pages: list[str] = []  # of /metrics, the last one for good
        self.running = self.most_running = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self._send(self.server.status, json.dumps(self.server.models).encode())
        elif self.server.pages:
            page = self.server.pages.pop(0) if len(self.server.pages) > 1 else self.server.pages[0]
            self._send(200, page.encode())
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.headers_seen.append(dict(self.headers))
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        try:
            self._answer(self.server.behaviours.get(number, "well"), body)
        finally:
            with self.server.lock:
                self.server.running -= 1

    def _answer(self, behaviour: str, body: dict[str, Any]) -> None:
        if behaviour == "full":
            self._send(503, b'{"error": {"message": "the queue is full"}}')
            return
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        if behaviour == "silent":
            return
        for number in range(body["max_tokens"]):
            reason = "length" if number == body["max_tokens"] - 1 else None
            self._event({"choices": [{"text": "a", "finish_reason": reason}]})
            if behaviour == "cut":
                return
            if behaviour == "error":
                self._event({"error": {"message": "the engine died"}})
                return
            if behaviour == "garbage":
                self.wfile.write(b"data: {not json\n\n")
                return
        self.wfile.write(b": a comment\n\n")
        self._event({"choices": [], "usage": {"completion_tokens": 4, "prompt_tokens": 21}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def play(server: Server, workload: Workload, **keys: Any) -> UrlRun:
    return drive_url(Target(url=server.url, timeout_s=20, **keys), workload)


def test_a_sound_server_is_measured(server: Server) -> None:
    run = play(server, load())
    result = run.result()
    assert (result.completed, result.failed, result.output_tokens, result.input_tokens) == (6, 0, 24, 126)
    assert run.model == "served"
    assert len(run.times.gaps_ms()) == 18
    assert result.ttft_ms is not None
    assert result.ttft_ms.mean > 0
    assert server.most_running <= 3


def test_a_request_says_exactly_what_is_wanted(server: Server) -> None:
    play(server, load(requests=2, tenant="team", priority=3), api_key="schlüssel", model="other")
    body = server.bodies[0]
    assert len(body["prompt"]) == 20
    assert all(256 <= token < 32_000 for token in body["prompt"])
    assert body["model"] == "other"
    assert body["stream"] is True
    assert body["ignore_eos"] is True
    assert (body["tenant"], body["priority"], body["max_tokens"]) == ("team", 3, 4)
    assert server.headers_seen[0]["authorization"].encode("latin-1") == "Bearer schlüssel".encode()
    play(server, load(requests=1), prompts="text", ignore_eos=False)
    assert len(server.bodies[-1]["prompt"].split()) == 20
    assert "ignore_eos" not in server.bodies[-1]


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ("full", "http 503", "the queue is full"),
        ("cut", "cut off", "without"),
        ("error", "error in stream", "the engine died"),
        ("garbage", "malformed", "not json"),
        ("silent", "cut off", "without"),
    ],
)
def test_what_fails_is_counted_by_kind_and_the_rest_goes_on(
    server: Server, behaviour: str, kind: str, message: str
) -> None:
    server.behaviours = {1: behaviour, 3: behaviour}
    run = play(server, load())
    result = run.result()
    assert (result.completed, result.failed) == (4, 2)
    assert result.errors == {kind: 2}
    assert message in run.samples[kind]


def test_a_server_that_hangs_is_a_timeout(server: Server) -> None:
    server.behaviours = {0: "well"}
    lock = server.lock
    with lock:  # nobody gets an answer while it is held
        run = drive_url(Target(url=server.url, timeout_s=0.2), load(requests=2, concurrency=2))
    assert run.result().errors == {"timeout": 2}


def page(preemptions: int, queries: int, hits: int, usage: float) -> str:
    lines = ["# TYPE vllm:num_preemptions counter"]
    for engine in (0, 1):
        lines.append(f'vllm:num_preemptions_total{{engine="{engine}"}} {preemptions}')
    lines += ["# TYPE vllm:prefix_cache_queries counter", f"vllm:prefix_cache_queries_total {queries}"]
    lines += ["# TYPE vllm:prefix_cache_hits counter", f"vllm:prefix_cache_hits_total {hits}"]
    return "\n".join(
        [*lines, "# TYPE vllm:kv_cache_usage_perc gauge", f"vllm:kv_cache_usage_perc {usage}", ""]
    )


def test_what_the_server_says_of_itself_is_read_before_and_after(server: Server) -> None:
    server.pages = [page(1, 100, 50, 0.0), page(2, 150, 60, 0.5), page(4, 300, 100, 0.25)]
    run = play(server, load(requests=40))
    assert run.server is not None
    assert run.server.preemptions == 2 * (4 - 1)
    assert run.server.kv_usage_peak == 0.5
    assert run.server.prefix_hit_rate == pytest.approx(50 / 200)
    assert run.result().preemptions == 6


@pytest.mark.parametrize("text", ["", "no metrics\nat all {"])
def test_a_server_without_a_metrics_page_is_measured_all_the_same(server: Server, text: str) -> None:
    server.pages = [text] if text else []
    run = play(server, load())
    assert run.server is None
    assert run.result().completed == 6


def test_a_warm_up_is_asked_first_and_not_counted(server: Server) -> None:
    run = drive_url(Target(url=server.url), load(), warmup=2)
    assert len(server.bodies) == 8
    assert run.result().requests == 6


def test_contents_are_new_unless_a_seed_is_given(server: Server) -> None:
    runs = [drive_url(Target(url=server.url), load(), seed=seed) for seed in (None, None, 7, 7)]
    sent = [sorted(body["prompt"] for body in server.bodies[at : at + 6]) for at in range(0, 24, 6)]
    assert sent[0] != sent[1]
    assert sent[2] == sent[3]
    assert [run.seed for run in runs[2:]] == [7, 7]
    assert drive_url(Target(url=server.url), load(), seed=runs[0].seed).seed == runs[0].seed
    assert sorted(body["prompt"] for body in server.bodies[24:]) == sent[0]


def test_a_server_that_answers_no_warm_up_is_not_measured(server: Server) -> None:
    server.behaviours = {0: "full", 1: "error"}
    with pytest.raises(EvidenceError, match=r"every request of the warm-up failed: .*the queue is full"):
        drive_url(Target(url=server.url), load(), warmup=2)
    assert len(server.bodies) == 2


def test_no_server_and_no_model_are_told(server: Server) -> None:
    with pytest.raises(EvidenceError, match="no server answers"):
        drive_url(Target(url="http://127.0.0.1:9"), load())
    with pytest.raises(EvidenceError, match="http://localhost:9/v1"):
        drive_url(Target(url="localhost:9"), load())
    server.models = {"data": []}
    with pytest.raises(EvidenceError, match="lists no model"):
        play(server, load())
    server.status = 401
    with pytest.raises(EvidenceError, match="answers 401; --api-key sends a key"):
        play(server, load())

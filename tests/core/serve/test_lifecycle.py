"""Clients that leave, full queues, engines that die, servers told to stop: an answer at once, nothing leaked."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_support import Running, events, eventually, fake_parts, refuse_before_loading, running_server
from structlog.testing import capture_logs

from camshaft.core.config import ServeConfig
from camshaft.core.errors import CapacityError, EngineError, ModelError
from camshaft.core.messages import Ready
from camshaft.core.serve.server import Server, tell_capacity

COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": "ab", "temperature": 0, "ignore_eos": True, "max_tokens": 250}
SLOW = {"step_s": 0.02}


def idle(server: Running) -> bool:
    stats = server.get("/debug/stats").json()
    return (stats["used_blocks"], stats["running"], stats["waiting"]) == (0, 0, 0)


def running(server: Running, count: int) -> bool:
    return server.get("/debug/stats").json()["running"] == count


def leave_early(server: Running, body: dict[str, Any], after_bytes: int) -> None:
    """Sends a request on a raw socket, reads a little of the answer and cuts the line."""
    port = int(server.url.rpartition(":")[2])
    data = httpx.Request("POST", server.url + COMPLETIONS, json=body)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    content = data.read()
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        got = b""
        while len(got) < after_bytes:
            got += line.recv(4096)


@pytest.mark.parametrize(("fields", "after_bytes"), [({"stream": True}, 400), ({}, 0), ({"n": 3}, 0)])
def test_a_client_that_leaves_frees_its_blocks(
    model_folder: Path, fields: dict[str, Any], after_bytes: int
) -> None:
    with running_server(model_folder, SLOW) as server:
        leave_early(server, {**ENDLESS, **fields}, after_bytes)
        eventually(lambda: idle(server))
        assert (
            server.post(COMPLETIONS, {"prompt": "ok", "temperature": 0}).json()["choices"][0]["text"] == "ok"
        )
        assert 'finished_reason="abort"} 0.0' not in server.get("/metrics").text


def test_a_full_queue_is_503_with_retry_after(model_folder: Path) -> None:
    body = {**ENDLESS, "max_tokens": 60}
    with running_server(model_folder, {**SLOW, "max_num_seqs": 1}, max_queued_requests=2) as server:
        with ThreadPoolExecutor(3) as pool:
            # One runs and two wait; sent one by one, for the first must have left the queue.
            futures = [pool.submit(server.post, COMPLETIONS, body)]
            eventually(lambda: running(server, 1))
            for waiting in (1, 2):
                futures.append(pool.submit(server.post, COMPLETIONS, body))
                eventually(lambda: server.get("/debug/stats").json()["waiting"] == waiting)  # noqa: B023
            refused = server.post(COMPLETIONS, body)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "ServiceUnavailableError"
            assert server.get("/health").status_code == 200
            counted = 'vllm:admission_rejections_total{engine="0",model_name="fake-model",reason="max_num_queued_reqs"} 1.0'
            assert counted in server.get("/metrics").text
            assert [future.result().status_code for future in futures] == [200, 200, 200]
        assert server.post(COMPLETIONS, body).status_code == 200


def test_a_burst_that_finds_free_rows_is_no_queue(model_folder: Path) -> None:
    with running_server(model_folder, {**SLOW, "max_num_seqs": 8}, max_queued_requests=1) as server:
        server.post(COMPLETIONS, {"prompt": "warm"})
        with ThreadPoolExecutor(8) as pool:
            body = {"prompt": "ab", "max_tokens": 20}
            replies = list(pool.map(lambda _: server.post(COMPLETIONS, body), range(8)))
        assert [reply.status_code for reply in replies] == [200] * 8


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_takes_too_long(model_folder: Path, streamed: bool) -> None:
    with running_server(model_folder, {"step_s": 0.05}, request_timeout_s=0.5) as server:
        reply = server.post(COMPLETIONS, {**ENDLESS, "stream": streamed})
        if streamed:
            assert events(reply.text)[-1]["error"]["code"] == 504
        else:
            assert reply.status_code == 504
            assert reply.json()["error"]["type"] == "TimeoutError"
        eventually(lambda: idle(server))


@pytest.mark.parametrize("kill", [True, False])
def test_the_engine_dies(model_folder: Path, kill: bool) -> None:
    """Killed from outside, or by an error of its own: every client hears of it, and so does /health."""
    codes: list[int] = []
    with running_server(model_folder, {**SLOW, "crash_token": 9}, codes.append) as server:
        with ThreadPoolExecutor(3) as pool:
            whole = pool.submit(server.post, COMPLETIONS, ENDLESS)
            stream = pool.submit(server.post, COMPLETIONS, {**ENDLESS, "stream": True})
            eventually(lambda: running(server, 2))
            if kill:
                os.kill(server.server.client.pid or 0, signal.SIGKILL)
            else:
                crash = server.post(COMPLETIONS, {"prompt": [9]})
                assert crash.status_code == 503
                assert "fell off the bus" in crash.json()["error"]["message"]
            told = whole.result(10)
            assert told.status_code == 503
            assert ("killed by SIGKILL" if kill else "fell off the bus") in told.json()["error"]["message"]
            assert events(stream.result(10).text)[-1]["error"]["code"] == 503
        assert server.get("/health").status_code == 503
        assert server.post(COMPLETIONS, ENDLESS).status_code == 503
        assert server.get("/metrics").status_code == 200
    assert codes == [1]


def test_an_engine_that_hangs_is_not_healthy(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.core.serve.api.service.HUNG_S", 0.2)
    with ThreadPoolExecutor(1) as pool, running_server(model_folder, {"step_s": 1.5}) as server:
        assert server.get("/health").status_code == 200
        future = pool.submit(server.post, COMPLETIONS, {"prompt": "ab", "max_tokens": 1})
        eventually(lambda: server.get("/health").status_code == 503)
        assert future.result().status_code == 200
        assert server.get("/health").status_code == 200


def test_a_question_that_an_engine_does_not_answer(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("camshaft.core.serve.engine.client._QUERY_TIMEOUT_S", 0.05)
    with running_server(model_folder) as server:
        with monkeypatch.context() as deaf:
            deaf.setattr(server.server.client._link, "send", lambda message: None)
            told = [server.get(f"/debug/{path}") for path in ("explain/x", "stats", "memory", "integrity")]
        for answer in told:
            assert answer.json()["error"]["message"].startswith("the engine has said nothing for 0.05 s")


def test_drain_finishes_what_runs(model_folder: Path) -> None:
    codes: list[int] = []
    body = {**ENDLESS, "max_tokens": 60, "stream": True}
    with ThreadPoolExecutor(1) as pool, running_server(model_folder, SLOW, codes.append) as server:
        future = pool.submit(server.post, COMPLETIONS, body)
        eventually(lambda: running(server, 1))
        server.stop()
        eventually(lambda: server.get("/health").status_code == 503)
        refused = server.post(COMPLETIONS, ENDLESS)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert events(future.result(20).text)[-1]["choices"][0]["finish_reason"] == "length"
    assert codes == [0]


@pytest.mark.parametrize("twice", [True, False])
def test_drain_ends_at_the_timeout_or_the_second_signal(model_folder: Path, twice: bool) -> None:
    codes: list[int] = []
    drain = running_server(model_folder, {"step_s": 0.1}, codes.append, drain_timeout_s=60 if twice else 0.3)
    with ThreadPoolExecutor(1) as pool, drain as server:
        future = pool.submit(server.post, COMPLETIONS, ENDLESS)
        eventually(lambda: running(server, 1))
        server.stop()
        if twice:
            server.stop()
        assert future.result(20).status_code == 503
    assert codes == [1]


@pytest.mark.parametrize(("how", "error"), [("capacity", CapacityError), ("model", ModelError)])
def test_an_engine_that_cannot_open(model_folder: Path, how: str, error: type[Exception]) -> None:
    with pytest.raises(error), running_server(model_folder, {"fail_open": how}):
        pass


@pytest.mark.parametrize(
    "name", ["chat_template", "ssl_certfile", "ssl_keyfile", "generation_config", "record"]
)
def test_files_that_are_not_there_are_refused_before_loading(tmp_path: Path, name: str) -> None:
    config = ServeConfig.model_validate({"model": "m", "port": 0, name: str(tmp_path / "none" / "file")})
    refuse_before_loading(config, "ssl_certfile" if name == "ssl_keyfile" else "none")


def test_a_unix_socket(model_folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "engine.sock")
    with running_server(model_folder, uds=path) as server:
        assert server.url == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url="http://engine") as client:
            assert client.get("/health").status_code == 200
    assert not Path(path).exists()
    with running_server(model_folder, uds=path):
        os.unlink(path)  # another server has put its own there
        Path(path).touch()
    assert Path(path).exists()


SCRIPT = """
import signal
import sys
sys.path.insert(0, sys.argv[1])
from fake_engine import fake_factory
from camshaft.core.config import ServeConfig
from camshaft.core.serve.parts import Parts
from camshaft.core.serve.server import run_server
from camshaft.core.tokenizer import Tokenizer

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    tokenizer = Tokenizer(sys.argv[2])
    factory = fake_factory(eos=tokenizer.eos_token_ids[0], step_s=0.02)
    sys.exit(run_server(Parts(ServeConfig(model="fake-model", port=0), factory, lambda: tokenizer)))
"""


class Process:
    """A server as a process of its own, its log read as it comes."""

    def __init__(self, folder: Path, tmp_path: Path, temporary: Path) -> None:
        self.temporary = temporary
        script = tmp_path / "serve.py"
        script.write_text(SCRIPT)
        here = str(Path(__file__).parent)
        self.process = subprocess.Popen(
            [sys.executable, str(script), here, str(folder)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        eventually(lambda: self._find("listening on") is not None, timeout_s=120)
        line = self._find("listening on") or ""
        self.url = line.split("listening on ")[1].split()[0]
        self.engine_pid = int(line.split("engine_pid=")[1].split()[0])

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def close(self) -> None:
        self._reader.join(30)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _find(self, text: str) -> str | None:
        assert self.process.poll() is None or self._reader.is_alive(), "".join(self.log)
        return next((line for line in list(self.log) if text in line), None)

    def post(self, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + COMPLETIONS, json=body, timeout=30, trust_env=False)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def process(model_folder: Path, tmp_path: Path):
    # Not below tmp_path: the path of a socket must be short.
    with tempfile.TemporaryDirectory() as temporary:
        process = Process(model_folder, tmp_path, Path(temporary))
        try:
            process.wait_until_ready()
            yield process
        finally:
            process.process.kill()
            process.process.wait()
            process.close()
            eventually(lambda: not alive(process.engine_pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_and_exits_with_0(process: Process, number: signal.Signals) -> None:
    headers = {"x-request-id": "seen-in-log"}
    httpx.post(process.url + COMPLETIONS, json={"prompt": "hi"}, headers=headers, trust_env=False)
    eventually(lambda: any("request_id=seen-in-log" in line and "status=200" in line for line in process.log))
    assert any("KV cache size: 1,024 tokens" in line for line in process.log)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(process.post, {**ENDLESS, "max_tokens": 50})
        eventually(lambda: httpx.get(process.url + "/debug/stats", trust_env=False).json()["running"] == 1)
        os.kill(process.engine_pid, number)  # as a terminal that closes, or a group's
        process.process.send_signal(number)
        assert future.result().json()["usage"]["completion_tokens"] == 50
    assert process.process.wait(20) == 0
    eventually(lambda: not alive(process.engine_pid))


def test_a_dead_engine_ends_the_server_with_1(process: Process) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(process.post, ENDLESS)
        eventually(lambda: httpx.get(process.url + "/debug/stats", trust_env=False).json()["running"] == 1)
        os.kill(process.engine_pid, signal.SIGKILL)
        assert future.result().status_code == 503
    assert process.process.wait(20) == 1


@pytest.mark.parametrize(("most", "says"), [(32, "too few to serve anybody"), (65536, "cannot be started")])
def test_too_few_files_are_told_of(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, says: str
) -> None:
    """Nobody could be served, or no engine process be started; nothing is left behind."""

    def full(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    monkeypatch.setattr("camshaft.core.serve.engine.link.BaseProcess.start", full)
    with pytest.raises(EngineError, match=says), running_server(model_folder):
        pass
    assert not list(tmp_path.iterdir())


def test_told_to_stop_while_loading(model_folder: Path) -> None:
    async def start() -> int:
        server = Server(fake_parts(model_folder, {"open_s": 60}))
        asyncio.get_running_loop().call_later(0.5, server.stop)
        return await server.run()

    with capture_logs() as lines:
        assert asyncio.run(start()) == 0  # nobody was cut off
    assert [line["event"] for line in lines][-1] == "stopped"


def test_a_long_load_is_not_silent(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Log:
        def info(self, event: str, **_: object) -> None:
            told.append(event)

    monkeypatch.setattr("camshaft.core.serve.server._STILL_S", 0.05)
    monkeypatch.setattr("camshaft.core.serve.server.log", Log())
    with running_server(model_folder, {"open_s": 0.5}):
        assert any(event.startswith("still loading after") for event in told)
    assert told[-1] == "stopped"


def test_no_orphan_is_left(process: Process) -> None:
    assert list(process.temporary.iterdir())
    process.process.kill()
    eventually(lambda: not alive(process.engine_pid))
    assert not list(process.temporary.iterdir())


@pytest.mark.parametrize(
    ("given", "said"), [(None, False), (64 * 256, False), (64 * 256 + 255, False), (2**30, True)]
)
def test_a_cache_smaller_than_asked_for_is_said(given: int | None, said: bool) -> None:
    ready = Ready(256, 64, 16, 4, "fake", memory={"KV cache": 64 * 256})
    with capture_logs() as lines:
        tell_capacity(ready, "CPU", ServeConfig(kv_cache_memory_bytes=given))
    assert any("kv_cache_memory_bytes" in line["event"] for line in lines) == said


def test_a_cache_smaller_than_asked_for_says_why() -> None:
    ready = Ready(256, 64, 16, 4, "fake", memory={"KV cache": 64 * 256})
    with capture_logs() as lines:
        tell_capacity(ready, "CPU", ServeConfig(kv_cache_memory_bytes=2**30, num_gpu_blocks_override=64))
    assert lines[-1]["event"].endswith("16,384 are taken: num_gpu_blocks_override is 64")

"""A tiny byte-level tokenizer, and servers around the fake engine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvloop
from fake_engine import fake_factory
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from camshaft.core.config import ServeConfig
from camshaft.core.errors import ConfigError
from camshaft.core.serve.parts import Parts
from camshaft.core.serve.server import Server
from camshaft.core.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'evil' %}"
    "{{ raise_exception('evil is no role') }}{% endif %}{{ message.content }}{% endfor %}"
)
TEXT = "the quick brown fox jumps over the lazy dog. Hello, world! Your answer: Yes\n" * 4


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A model folder with nothing but a tokenizer: 256 bytes, some merges, two special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([TEXT], trainer)
    backend.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|pad|>", special=True)])
    backend.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"eos_token": "<|end|>"}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@dataclass
class Running:
    """A server in a thread of this process, its engine in another process."""

    server: Server
    url: str
    tokenizer: Tokenizer
    loop: asyncio.AbstractEventLoop
    client: httpx.Client

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.server.stop)


def fake_parts(folder: Path, engine: dict[str, Any] | None = None, **config: Any) -> Parts:
    """A server over the fake engine, with the tokenizer in `folder`."""
    tokenizer = Tokenizer(folder)
    values = {"disable_uvicorn_access_log": True, "log_level": "warning", **config}
    settings = ServeConfig(model="fake-model", port=0, **values)
    factory = fake_factory(eos=tokenizer.eos_token_ids[0], **(engine or {}))
    return Parts(settings, factory, lambda: tokenizer)


@contextmanager
def running_server(
    folder: Path,
    engine: dict[str, Any] | None = None,
    on_exit: Callable[[int], None] | None = None,
    **config: Any,
) -> Iterator[Running]:
    """A server over the fake engine on a free port; `on_exit` is told its exit code."""
    with running(fake_parts(folder, engine, **config), on_exit) as server:
        yield server


@contextmanager
def running(parts: Parts, on_exit: Callable[[int], None] | None = None) -> Iterator[Running]:
    """Starts a server in a thread; stops it, and waits for it, at the end."""
    started = threading.Event()
    box: dict[str, Any] = {}

    async def main() -> int:
        server = Server(parts)
        server.on_listening = lambda address: (box.update(url=address), started.set())
        box.update(server=server, loop=asyncio.get_running_loop())
        return await server.run()

    def run() -> None:
        try:
            box["exit"] = uvloop.run(main())
        except BaseException as error:
            box["error"] = error
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait(120)
    if "error" in box:
        raise box["error"]
    # Loading the certificates of the world would cost more than any test.
    client = httpx.Client(base_url=box["url"], timeout=60, trust_env=False, verify=False)
    server = Running(box["server"], box["url"], cast(Tokenizer, parts.load_tokenizer()), box["loop"], client)
    try:
        yield server
    finally:
        client.close()
        if thread.is_alive():
            server.stop()
        thread.join(30)
        assert not thread.is_alive()
        if on_exit is not None:
            on_exit(box["exit"])


def refuse_before_loading(config: ServeConfig, says: str) -> None:
    def never() -> Any:
        raise AssertionError("nothing may be loaded")

    async def start() -> int:
        return await Server(Parts(config, fake_factory(eos=0), never)).run()

    with pytest.raises(ConfigError, match=says):
        asyncio.run(start())


def eventually(check: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline_s, "it never came to be"
        time.sleep(0.01)


def events(text: str) -> list[dict[str, Any]]:
    """The JSON of each server-sent event; the stream must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]

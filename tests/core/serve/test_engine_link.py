"""The end of the engine process, as the server hears of it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import zmq

from camshaft.core.messages import Fatal, FromEngine, encode
from camshaft.core.serve.engine_link import EngineLink
from camshaft.core.serve.engine_process import EXIT_FATAL


@dataclass
class Socket:
    """Its mail is still in the socket's own thread: only who waits for it gets it."""

    mail: list[bytes]
    arrived: bool = False
    closed: bool = False

    def poll(self, wait_ms: int) -> bool:
        self.arrived |= wait_ms > 0
        return self.arrived and bool(self.mail)

    def recv(self, _: int) -> bytes:
        if not self.poll(0):
            raise zmq.Again
        return self.mail.pop(0)


@dataclass
class Process:
    exitcode: int
    sentinel: int

    def join(self, _: float) -> None:
        pass


@dataclass
class Heard:
    told: list[str] = field(default_factory=list)

    def on_message(self, message: FromEngine) -> None:
        assert isinstance(message, Fatal)
        self.told.append(message.error)

    def on_gone(self, why: str) -> None:
        self.told.append(why)


@pytest.mark.parametrize(
    ("exit_code", "says"), [(EXIT_FATAL, "weights need 80 GiB"), (-9, "has gone (killed")]
)
def test_the_reason_of_an_end_is_heard_before_the_end(exit_code: int, says: str) -> None:
    async def end() -> list[str]:
        link, heard = EngineLink(cast(Any, None), "info", "console"), Heard()
        mail = [encode(Fatal("weights need 80 GiB", "CapacityError"))] if exit_code == EXIT_FATAL else []
        reader, writer = os.pipe()
        vars(link).update(_socket=Socket(mail), _listener=heard)
        vars(EngineLink)["_on_exit"](link, Process(exit_code, reader))
        os.close(reader)
        os.close(writer)
        return heard.told

    assert says in asyncio.run(end())[0]

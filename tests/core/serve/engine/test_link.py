"""The end of the engine process, as the server hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dying_engine import WHY, killed, late, misnamed, refused, silent

from camshaft.core.messages import Fatal, FromEngine
from camshaft.core.serve.engine.link import EngineLink
from camshaft.core.serve.engine.process import EXIT_FATAL, PARENTS_SIGNALS


@dataclass
class Heard:
    told: list[str] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def on_message(self, message: FromEngine) -> None:
        assert isinstance(message, Fatal)
        self.told.append(message.error)

    def on_gone(self, why: str) -> None:
        self.told.append(why)
        self.gone.set()


async def end(factory: Any, *signals: signal.Signals) -> list[str]:
    link, heard = EngineLink(factory, "info", "console"), Heard()
    link.start(heard)
    for number in signals:
        os.kill(link.pid or 0, number)
    try:
        await heard.gone.wait()
    finally:
        await link.end(5)
    return heard.told


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        (refused, [WHY, f"the engine process has gone (exit code {EXIT_FATAL})"]),
        (misnamed, ["caf?: no room", f"the engine process has gone (exit code {EXIT_FATAL})"]),
        (
            killed,
            ["the engine process has gone (killed by SIGKILL, as the kernel does where memory runs out)"],
        ),
    ],
)
def test_the_reason_of_an_end_is_heard_and_then_the_end(factory: Any, told: list[str]) -> None:
    assert asyncio.run(end(factory)) == told


def test_ctrl_c_while_the_process_starts_is_left_to_its_parent() -> None:
    told = asyncio.run(end(refused, signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    assert told == [WHY, f"the engine process has gone (exit code {EXIT_FATAL})"]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(PARENTS_SIGNALS)


def test_words_that_come_after_the_end_are_heard_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # short enough for a socket, as pytest's are not
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert asyncio.run(end(partial(late, folder)))[0] == WHY


def test_others_are_served_while_last_words_are_awaited(tmp_path: Path) -> None:
    left = tmp_path / "left"

    async def turns_meanwhile() -> int:
        told, turns = asyncio.create_task(end(partial(silent, left))), 0
        while not told.done():
            await asyncio.sleep(0.01)
            turns += left.exists()
        assert "has gone" in told.result()[0]
        return turns

    assert asyncio.run(turns_meanwhile()) > 10

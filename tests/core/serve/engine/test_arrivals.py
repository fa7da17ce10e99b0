"""When a request arrived: at the server, not when the engine had time to look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from camshaft.core.messages import AddRequest, Drain, encode
from camshaft.core.request import Request, SamplingParams
from camshaft.core.serve.engine.process import EngineLoop

NOW_S = 50.0


@pytest.mark.parametrize(("sent_s", "arrival_s"), [(49.5, 49.5), (None, NOW_S), (60.0, NOW_S)])
def test_waiting_for_a_step_to_end_counts(sent_s: float | None, arrival_s: float) -> None:
    message = AddRequest(1, "a", b"\x07\0\0\0", SamplingParams(), sent_s=sent_s, timeout_ms=1000)
    pending = [encode(message), encode(Drain())]
    added: list[Request] = []

    def recv(_: int) -> bytes:
        if not pending:
            raise zmq.Again
        return pending.pop(0)

    engine: Any = SimpleNamespace(clock=lambda: NOW_S, add=added.append, has_work=False, stats=lambda: None)
    engine.check_integrity = lambda: None
    socket: Any = SimpleNamespace(recv=recv, send=lambda _: None, poll=lambda *_: 0)
    EngineLoop(engine, socket).run()
    assert [request.arrival_s for request in added] == [arrival_s]
    assert added[0].deadline_s == NOW_S + 1

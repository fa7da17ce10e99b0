"""When the engine's loop lets time pass: only when nothing can run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from camshaft.core.messages import Drain, Output, Outputs, encode
from camshaft.core.serve.engine.process import EngineLoop


@pytest.mark.parametrize(
    ("blocked", "outputs", "waits"),
    [
        (False, [], 0),  # a part of a prompt: the device has work, and its next step is to be planned
        (False, [Output(1, [5])], 0),
        (True, [], 3),
        (True, [Output(1, [5])], 0),
    ],
)
def test_only_a_step_that_found_nothing_to_run_is_waited_after(
    blocked: bool, outputs: list[Output], waits: int
) -> None:
    pending = [encode(Drain())]
    waited: list[int] = []

    def recv(_: int) -> bytes:
        if not pending:
            raise zmq.Again
        return pending.pop(0)

    class ThreeSteps:
        steps = 0
        blocked = False

        def clock(self) -> float:
            return 0.0

        @property
        def has_work(self) -> bool:
            return self.steps < 3

        def step(self) -> Outputs:
            self.steps += 1
            self.blocked = blocked
            return Outputs(list(outputs))

        def stats(self) -> None:
            return None

    engine: Any = ThreeSteps()
    socket: Any = SimpleNamespace(
        recv=recv, send=lambda _: None, poll=lambda *wait_ms: waited.extend(wait_ms)
    )
    EngineLoop(engine, socket).run()
    assert engine.steps == 3
    assert len(waited) == waits

"""The bound on what the server takes in, whatever an engine admits and however late it is heard."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import QueueFull
from camshaft.core.messages import Abort, AddRequest, Output, Outputs, Ready, Stats
from camshaft.core.request import SamplingParams
from camshaft.core.serve.engine.client import ClientOptions, EngineClient
from camshaft.core.serve.observe.metrics import Metrics
from camshaft.core.serve.text.detokenize import ByteDetokenizer
from camshaft.core.serve.text.generation import Generation, Sequence, TextRules


class SlowEngine:
    """Reads, admits and ends what it likes; a closed batch or want of blocks may leave rows free."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.mail: list[Any] = []
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.received = 0

    def send(self, message: Any) -> None:
        self.mail.append(message)

    def read(self) -> None:
        for message in self.mail:
            if isinstance(message, AddRequest):
                self.received += 1
                self.waiting.append(message.handle)
            elif isinstance(message, Abort):
                self.waiting = [handle for handle in self.waiting if handle not in message.handles]
                self.running = [handle for handle in self.running if handle not in message.handles]
        self.mail = []

    def step(self, admitted: int, ended: int) -> Outputs:
        outputs = [Output(handle, [1], "length") for handle in self.running[:ended]]
        self.running = self.running[ended:]
        admitted = min(admitted, self.rows - len(self.running))
        self.running += self.waiting[:admitted]
        self.waiting = self.waiting[admitted:]
        figures: dict[str, Any] = dict.fromkeys(Stats.__struct_fields__[:12], 0)
        figures |= {"running": len(self.running), "waiting": len(self.waiting)}
        stats = Stats(**figures)
        return Outputs(outputs, stats=stats, received=self.received)

    @property
    def present(self) -> int:
        """Sequences here or on their way."""
        sent = sum(isinstance(message, AddRequest) for message in self.mail)
        return len(self.waiting) + len(self.running) + sent


def generation(n: int) -> Generation:
    return Generation(
        "cmpl-x", [Sequence(i, f"x-{i}", [1], TextRules(), ByteDetokenizer([b"a"] * 2)) for i in range(n)]
    )


SUBMIT = st.tuples(st.just("submit"), st.integers(1, 3), st.just(0))
STEP = st.tuples(st.just("step"), st.integers(0, 4), st.integers(0, 3))
OTHERS = st.tuples(st.sampled_from(["read", "hear", "abort"]), st.integers(0, 5), st.just(0))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    rows=st.integers(1, 6),
    limit=st.integers(1, 5),
    moves=st.lists(st.one_of(SUBMIT, SUBMIT, STEP, OTHERS), max_size=80),
)
def test_rows_and_queue_bound_what_is_taken(rows: int, limit: int, moves: list[tuple[str, int, int]]) -> None:
    """A request is taken only while fewer than rows + limit sequences are here; one of n is taken whole."""
    engine = SlowEngine(rows)
    client = EngineClient(lambda: None, Metrics("m"), ClientOptions(limit))  # type: ignore[arg-type]
    client._link = engine  # type: ignore[assignment]
    client.ready = Ready(100, 10, 16, rows, "p")
    unheard: list[Outputs] = []
    taken: list[Generation] = []
    for move, count, ended in moves:
        if move == "submit":
            present, asked = engine.present, generation(count)
            adds = [AddRequest(0, s.id, b"", SamplingParams()) for s in asked.sequences]
            try:
                client.submit(asked, adds)
                taken.append(asked)
                assert present < rows + limit
            except QueueFull:
                assert not any(sequence.handle >= 0 for sequence in asked.sequences)
        elif move == "step":
            engine.read()
            unheard.append(engine.step(count, ended))
        elif move == "read":
            engine.read()
        elif move == "hear" and unheard:
            client.on_message(unheard.pop(0))
        elif move == "abort" and taken:
            client.abort(taken.pop(count % len(taken)))
    assert engine.present <= rows + limit - 1 + 3

    # Whoever left or ended makes room again: an idle engine takes the next request.
    for _ in range(200):
        engine.read()
        unheard.append(engine.step(rows, rows))
    for outputs in unheard:
        client.on_message(outputs)
    client.submit(generation(1), [AddRequest(0, "y", b"", SamplingParams())])

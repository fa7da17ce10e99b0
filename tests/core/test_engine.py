"""The step loop over a fake device: outputs, errors, explanations."""

from __future__ import annotations

import pytest
from fake_device import EOS, FakeDevice, make_engine, request, run

from camshaft.core.errors import RequestError


def test_tokens_come_once_each_and_the_last_output_says_why_it_ended() -> None:
    engine = make_engine()
    engine.add(request(1, [5] * 3, max_tokens=4))
    engine.add(request(2, [6] * 8, max_tokens=50))
    outputs = run(engine)
    assert [t for o in outputs[1] for t in o.tokens] == [5, 6, 7, 8]
    assert outputs[1][-1].finish_reason == "length"
    assert outputs[2][-1].finish_reason == "stop"
    assert outputs[2][-1].stop_token == EOS
    assert outputs[1][0].cached_tokens == 0
    assert outputs[1][-1].timing is not None
    assert outputs[1][-1].timing.decode_ms > 0
    stats = engine.stats()
    assert stats.prompt_tokens == 11
    assert stats.generation_tokens == sum(len(o.tokens) for line in outputs.values() for o in line)
    assert stats.used_blocks == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_is_blocked_when_there_is_nothing_to_run_or_to_collect(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(overlap=overlap)
    engine.add(request(1, [5] * 70, max_tokens=9))
    for _ in range(2):  # of the prompt's three parts of 32 tokens at most: nothing comes out
        assert not list(engine.step())
        assert not engine.blocked
    monkeypatch.setattr(engine.scheduler, "schedule", lambda now_s: None)
    engine.step()
    assert engine.blocked is not overlap  # overlapped, the second part was collected
    engine.step()
    assert engine.blocked


def test_logprobs_reach_only_who_asked() -> None:
    engine = make_engine()
    engine.add(request(1, [5] * 3, max_tokens=3, logprobs=1))
    engine.add(request(2, [5] * 3, max_tokens=3))
    outputs = run(engine)
    assert all(o.logprobs and o.logprobs[0].token_ids == o.tokens for o in outputs[1])


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    engine = make_engine()
    for bad in (1000, -1):
        with pytest.raises(RequestError, match="vocabulary"):
            engine.add(request(1, [bad]))
    assert not engine.has_work


def test_a_failed_row_ends_alone() -> None:
    engine = make_engine()
    engine.add(request(1, [5] * 3, max_tokens=5))
    engine.add(request(2, [5] * 3, max_tokens=5))
    engine.step()
    row = engine.scheduler.running.decoding[0]
    device = engine._executor
    assert isinstance(device, FakeDevice)
    device.fail = {row: "bad luck"}
    failed = [o for o in engine.step() if o.finish_reason == "error"]
    device.fail = {}
    assert [o.error for o in failed] == ["bad luck"]
    other = run(engine)
    assert [lines[-1].finish_reason for lines in other.values()] == ["length"]
    engine.check_integrity()


def test_explain_and_integrity_answer() -> None:
    engine = make_engine()
    engine.add(request(1, [5] * 3, max_tokens=2))
    run(engine)
    assert engine.query("explain", "r1")["finish_reason"] == "length"
    assert "error" in engine.query("explain", "nobody")
    assert engine.query("integrity")["free_blocks"] == 40
    assert "error" in engine.query("riddle")

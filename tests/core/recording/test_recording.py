"""A recording of the step loop, and its replay."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice, make_engine, request, run
from structlog.testing import CapturingLogger

from camshaft.core.engine import Engine
from camshaft.core.errors import EvidenceError
from camshaft.core.recording import recorder
from camshaft.core.recording.replay import replay
from camshaft.core.schedule.plan import StepPlan, StepResult
from camshaft.core.workload.traces import read_trace


def record_some(path: Path, policy: Any, seed: int, overlap: bool = False) -> Engine:
    rng = random.Random(seed)
    engine = make_engine(policy, record=path, overlap=overlap, num_blocks=20)
    shared = [list(range(2, 2 + 20)), list(range(50, 50 + 31))]
    live: list[int] = []
    prompt: list[int] = []
    for handle in range(60):
        fork = f"r{handle - 1}" if rng.random() < 0.2 and handle else None
        if fork is None:
            prompt = [*rng.choice(shared)[: rng.randint(0, 31)], *[100 + handle] * rng.randint(1, 30)]
        engine.add(
            request(
                handle,
                prompt,
                max_tokens=rng.randint(1, 25),
                tenant=rng.choice("ab"),
                priority=rng.randint(0, 2),
                fork_of=fork,
                prompt_logprobs=1 if rng.random() < 0.1 else None,
            )
        )
        live.append(handle)
        if rng.random() < 0.15:
            engine.abort([rng.choice(live)])
        for _ in range(rng.randint(0, 6)):
            engine.step()
    run(engine)
    engine.close()
    return engine


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["naive", "static", "continuous-chunked", "latency", "fair"])
def test_a_recording_replays_to_the_same_plans(tmp_path: Path, policy: str, overlap: bool) -> None:
    path = tmp_path / "run.jsonl"
    engine = record_some(path, policy, seed=5, overlap=overlap)
    again = replay(path)
    assert again.first_difference is None
    assert again.steps == engine.scheduler.step
    assert again.requests == 60
    if policy == "continuous-chunked":
        assert engine.scheduler.preemptions > 0
        assert engine.scheduler.kv.prefix.hits > 0


def test_the_recording_of_a_server_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for seed in (5, 6):
        record_some(path, "continuous-chunked", seed=seed)
    first, second = (replay(file) for file in (tmp_path / "run.jsonl.1", path))
    assert first.first_difference is second.first_difference is None
    assert first.steps != second.steps


@pytest.mark.parametrize("overlap", [False, True])
def test_a_recording_cut_short_replays_as_far_as_it_goes(tmp_path: Path, overlap: bool) -> None:
    """Wherever it is cut: prefixes of requests that never ended are known all the same."""
    path = tmp_path / "run.jsonl"
    engine = record_some(path, "continuous-chunked", seed=9, overlap=overlap)
    whole = path.read_bytes()
    assert not replay(path).cut_short
    steps: list[int] = []
    for part in range(1, 12):
        path.write_bytes(whole[: len(whole) * part // 12])
        again = replay(path)
        assert again.first_difference is None
        assert again.cut_short
        steps.append(again.steps)
    assert 0 < steps[0] < steps[-1] <= engine.scheduler.step
    assert steps == sorted(steps)


def test_a_recording_of_siblings_whose_first_left_at_once(tmp_path: Path) -> None:
    """Only the others ever had blocks of the prompt; a later request finds them."""
    prompt = list(range(2, 24))
    engine = make_engine(record=tmp_path / "run.jsonl")
    for handle in range(4):
        engine.add(request(handle, prompt, fork_of="r0" if handle else None, max_tokens=3))
    engine.abort([0])
    run(engine)
    engine.add(request(4, prompt, max_tokens=3))
    run(engine)
    engine.close()
    assert engine.scheduler.kv.prefix.hits >= 20
    assert replay(tmp_path / "run.jsonl").first_difference is None


def test_a_recording_of_a_conversation_that_goes_on_from_another_choice(tmp_path: Path) -> None:
    """Where the prompt ends within a block, each of n fills the rest of it in its own way."""

    class Dice(FakeDevice):
        def collect(self, handle: StepPlan) -> StepResult:
            result = super().collect(handle)
            tokens = 10 + 7 * result.rows + handle.starts[handle.samples]
            return StepResult(handle.step, result.rows, tokens.astype(np.int32), 1.0)

    engine = make_engine(record=tmp_path / "run.jsonl")
    engine._executor = Dice()
    prompt = list(range(2, 12))  # two blocks and a half
    for handle in range(3):
        engine.add(request(handle, prompt, fork_of="r0" if handle else None, max_tokens=9))
    outputs = run(engine)
    for handle in range(3):
        turn = [*prompt, *(token for output in outputs[handle] for token in output.tokens), 5, 6, 7]
        engine.add(request(10 + handle, turn, max_tokens=2))
        run(engine)
    engine.close()
    assert engine.scheduler.kv.prefix.hits >= 3 * 16
    assert replay(tmp_path / "run.jsonl").first_difference is None


def test_a_changed_recording_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record_some(path, "continuous-chunked", seed=6)
    lines = path.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if re.search(r'"stopped":\[\d+\]', line))
    lines[place] = re.sub(r'"stopped":\[\d+\]', '"stopped":[]', lines[place])
    path.write_text("\n".join(lines))
    assert replay(path).first_difference is not None


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('{"type":"recording"', '{"type":"request"', "not a recording"),
        ('"version":2', '"version":1', "of version 1; this release reads version 2"),
        ('"type":"step"', '"type":"leap"', "unknown type 'leap'"),
        ('"type":"step",', "", "damaged recording: KeyError"),
        ('"block_tokens":4', '"block_tokens":"x"', "block_tokens is no whole number"),
        ('"block_size":4', '"block_size":0', "damaged recording: ZeroDivisionError"),
        ('"num_blocks":20', '"num_blocks":9223372036854775808', "damaged recording: OverflowError"),
        ('"num_blocks":20', '"num_blocks":4000000000000000000', "damaged recording: MemoryError"),
    ],
)
def test_a_recording_that_cannot_be_read_is_refused(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = tmp_path / "run.jsonl"
    record_some(path, "continuous-chunked", seed=6)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(EvidenceError, match=message):
        replay(path)


def test_a_recording_names_each_block_of_a_request_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record_some(path, "continuous-chunked", seed=6)
    named: dict[int, list[int]] = {}
    ended: list[dict[str, Any]] = []
    for line in map(json.loads, path.read_text().splitlines()):
        if line["type"] in ("request", "blocks"):
            named.setdefault(line["seq"], []).extend(line["hash_ids"])
        if line["type"] == "request":
            ended.append(line)
    assert any(named.values())
    for line in ended:
        blocks = named[line["seq"]]
        assert len(set(blocks)) == len(blocks) <= (line["input_tokens"] + line["output_tokens"]) // 4
    rows = read_trace(path).rows
    assert sorted(row.hash_ids for row in rows) == sorted(map(tuple, named.values()))


def test_a_full_disk_ends_the_recording_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(recorder, "log", log)
    engine = record_some(Path("/dev/full"), "continuous-chunked", seed=8)
    assert not engine.has_work
    assert engine.scheduler.kv.newly_hashed is None  # else it would grow for as long as the server lives
    (said,) = log.calls
    assert said.method_name == "warning"
    assert said.args[0].startswith("the recording ends here")


def test_replay_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record_some(path, "continuous-chunked", seed=7)
    probe = (
        "import sys; from camshaft.core.recording.replay import replay\n"
        f"assert replay({str(path)!r}).first_difference is None\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)

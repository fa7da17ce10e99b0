"""Plays a recording again: a fresh scheduler, the same calls, and every plan compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...policies.registry import load_policy
from ..errors import CamshaftError, EvidenceError
from ..request import Request, SamplingParams
from ..schedule.params import SchedulerParams
from ..schedule.plan import StepPlan, StepResult
from ..schedule.recovery import start_over, take_back
from ..schedule.scheduler import Scheduler
from ..workload.traces import check_recording_header
from .recorder import plan_digest
from .tokens import RecordedTokens

_END = -1  # the token that ends a replayed sequence; no block holds it
_TORN = {"type": "torn"}  # stands for a last line without its end


@dataclass(frozen=True, slots=True)
class Replay:
    """Steps played, and the first whose plan came out otherwise (None: all the same)."""

    steps: int
    requests: int
    first_difference: int | None
    cut_short: bool  # it ends in the middle of a line, or before its requests do


def replay(path: str | Path) -> Replay:
    """Drives a fresh scheduler through a recording, as far as it goes, and compares every plan.

    Raises EvidenceError for a file that is no recording, of another version, or damaged.
    """
    lines = list(_read(Path(path)))
    try:
        return _Player(lines).play()
    except CamshaftError as error:
        raise EvidenceError(f"{path}: {error}") from error
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
        raise EvidenceError(f"{path}: damaged recording: {type(error).__name__}: {error}") from error


def _read(path: Path) -> Iterator[dict[str, Any]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decode(line)
                except msgspec.DecodeError as error:
                    if not line.endswith(b"\n"):
                        yield _TORN
                        return
                    raise EvidenceError(f"{path}:{number}: not a JSON line: {error}") from error
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from error


def _why(line: dict[str, Any]) -> str | None:
    return "failed in the recorded run" if line["given_up"] else None


class _Player:
    def __init__(self, lines: list[dict[str, Any]]) -> None:
        check_recording_header(lines[0] if lines else {})
        params = msgspec.convert({**lines[0]["params"], "eos_token_ids": (_END,)}, SchedulerParams)
        self._scheduler = Scheduler(params, load_policy(lines[0]["policy"]).build())
        self._lines = lines[1:]
        self._tokens = RecordedTokens(self._lines, params.block_size)
        self._num_ended = sum(line["type"] == "request" for line in self._lines)
        self._requests: dict[int, Request] = {}
        self._by_id: dict[str, Request] = {}
        self._in_flight: deque[StepPlan] = deque()
        self._steps = 0

    def play(self) -> Replay:
        difference: int | None = None
        for line in self._lines:
            match line["type"]:
                case "add":
                    self._add(line)
                case "abort":
                    self._scheduler.abort(self._requests[line["seq"]], line["now_s"])
                case "idle":
                    self._scheduler.schedule(line["now_s"])
                    self._scheduler.take_rejected()
                case "step":
                    plan = self._scheduler.schedule(line["now_s"])
                    self._scheduler.take_rejected()
                    self._steps += 1
                    if plan is None or plan_digest(plan) != line["digest"]:
                        difference = line["step"]
                        break
                    self._in_flight.append(plan)
                case "result":
                    self._update(line)
                case "take_back":
                    self._in_flight.pop()
                    take_back(self._scheduler, line["now_s"], line["limit"], _why(line))
                case "start_over":
                    self._in_flight.clear()
                    start_over(self._scheduler, line["now_s"], line["limit"], _why(line))
                case "limit":
                    self._scheduler.token_limit = line["limit"]
                case "request" | "blocks" | "torn":
                    pass
                case other:
                    raise EvidenceError(f"a line of unknown type {other!r}")
        cut_short = self._lines[-1:] == [_TORN] or self._num_ended < len(self._requests)
        return Replay(self._steps, len(self._requests), difference, cut_short)

    def _add(self, line: dict[str, Any]) -> None:
        first = self._by_id.get(line["fork_of"])
        request = Request(
            id=line["id"],
            prompt=self._tokens.prompt(line["seq"], line["input_tokens"]) if first is None else first.prompt,
            params=SamplingParams(
                max_tokens=line["max_tokens"], prompt_logprobs=0 if line["prompt_logprobs"] else None
            ),
            arrival_s=line["arrival_s"],
            priority=line["priority"],
            tenant=line["tenant"],
            deadline_s=line["deadline_s"],
            fork_of=line["fork_of"],
        )
        self._requests[line["seq"]] = self._by_id[request.id] = request
        self._scheduler.add(request, line["now_s"])

    def _update(self, line: dict[str, Any]) -> None:
        plan = self._in_flight.popleft()
        rows = plan.rows[plan.samples]
        stopped = set(line["stopped"])
        tokens = [self._drawn(int(row), stopped) for row in rows]
        failed = dict.fromkeys(line["failed"], "failed in the recorded run")
        result = StepResult(
            plan.step, rows, np.array(tokens, dtype=np.int32), line["duration_ms"], failed=failed
        )
        self._scheduler.update(result, line["now_s"])

    def _drawn(self, row: int, stopped: set[int]) -> int:
        columns = self._scheduler.rows
        seq = int(columns.seq[row])
        return _END if seq in stopped else self._tokens.at(seq, int(columns.known[row]))

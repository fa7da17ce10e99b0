"""What a server did, written down so that it can be played again: arrivals, lengths, prefix hashes, step plans.

Never content: a block of tokens stands as a number, hashed with a key that is thrown away. Each line is a
JSON object. `request` lines (one a finished request) are a workload that bench and simulate read, together
with `blocks` lines: each names blocks that no earlier line of its request has. The others let `replay` drive
a scheduler through the same calls and compare its plans. A file that was cut short, by a killed server, is
good up to there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import structlog

from ..policies.registry import PolicyFile, load_policy
from .errors import CamshaftError, EvidenceError
from .recorded_tokens import RecordedTokens
from .request import FINISH_STOP, Request, SamplingParams
from .schedule.outcome import Update
from .schedule.params import SchedulerParams
from .schedule.plan import StepPlan, StepResult
from .schedule.recovery import start_over, take_back
from .schedule.scheduler import Scheduler
from .workload.traces import RECORDING_VERSION, check_recording_header

log = structlog.get_logger()
_END = -1  # the token that ends a replayed sequence; no block holds it
_TORN = {"type": "torn"}  # stands for a last line without its end


def plan_digest(plan: StepPlan) -> str:
    """16 hex digits of everything a plan decides: rows, tokens, blocks and copies."""
    digest = blake2b(digest_size=8)
    for array in (
        plan.rows,
        plan.starts,
        plan.num_tokens,
        plan.samples,
        plan.removed,
        plan.table_rows,
        plan.table_indices,
        plan.table_blocks,
        plan.copies,
    ):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(b"|")
    digest.update(f"{plan.num_decodes} {plan.padding}".encode())
    return digest.hexdigest()


class Recorder:
    """Writes a recording. Every call of the scheduler is reported right after it was made.

    A recording that is there already, of a server that was started again, is kept as `PATH.1`. Where the file can no
    longer be written (a full disk), the recording ends and serving goes on.
    """

    def __init__(self, path: str | Path, scheduler: Scheduler, policy: PolicyFile) -> None:
        self._path, self._kv = path, scheduler.kv
        try:
            if os.path.isfile(path) and os.path.getsize(path):
                os.replace(path, f"{path}.1")
                log.info("the recording that was there is kept", file=f"{path}.1")
            self._file: BinaryIO | None = open(path, "wb")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise EvidenceError(f"{path}: the recording cannot be written: {error}") from error
        self._key = secrets.token_bytes(16)
        self._written: dict[Request, int] = {}  # of the unfinished: how many of their blocks
        self._kv.newly_hashed = {}
        self._encode = msgspec.json.Encoder().encode
        self._write(
            type="recording",
            version=RECORDING_VERSION,
            block_tokens=scheduler.params.block_size,
            params=msgspec.to_builtins(scheduler.params),
            policy=policy.model_dump(exclude_none=True),
        )

    def added(self, request: Request, now_s: float) -> None:
        if self._file is None:
            return
        self._written[request] = 0
        self._write(
            type="add",
            seq=request.seq,
            now_s=now_s,
            id=request.id,
            fork_of=request.fork_of,
            arrival_s=request.arrival_s,
            input_tokens=request.prompt_len,
            max_tokens=request.params.max_tokens,
            prompt_logprobs=request.params.prompt_logprobs is not None,
            priority=request.priority,
            tenant=request.tenant,
            deadline_s=request.deadline_s,
        )

    def aborted(self, request: Request, now_s: float) -> None:
        self._write(type="abort", seq=request.seq, now_s=now_s)
        self._finished(request)

    def planned(self, plan: StepPlan | None, now_s: float, rejected: list[Request]) -> None:
        if self._file is None:
            return
        if plan is None:
            self._write(type="idle", now_s=now_s)
        else:
            self._write(type="step", step=plan.step, now_s=now_s, digest=plan_digest(plan))
        self._write_blocks()
        for request in rejected:
            self._finished(request)

    def updated(self, result: StepResult, update: Update, now_s: float) -> None:
        finished = update.finished
        self._write(
            type="result",
            step=result.step,
            now_s=now_s,
            duration_ms=result.duration_ms,
            stopped=[r.seq for r in finished if r.finish_reason == FINISH_STOP],
            failed=sorted(result.failed),
        )
        for request in finished:
            self._finished(request)

    def recovered(self, launched: bool, now_s: float, limit: int | None, given_up: list[Request]) -> None:
        """The newest step was not launched (`take_back`), or a launched one was lost (`start_over`)."""
        way = "start_over" if launched else "take_back"
        self._write(type=way, now_s=now_s, limit=limit, given_up=bool(given_up))
        for request in given_up:
            self._finished(request)

    def limited(self, limit: int | None) -> None:
        """A step may have so many tokens from now on."""
        self._write(type="limit", limit=limit)

    def close(self) -> None:
        file = self._end()
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._warn(error)

    def _end(self) -> BinaryIO | None:
        """Nothing is written or kept from now on; returns the file if it is still open."""
        file, self._file, self._kv.newly_hashed = self._file, None, None
        self._written.clear()
        return file

    def _write_blocks(self) -> None:
        """Blocks hashed since the last plan: a request that never ends has no line of its own."""
        for request in self._kv.newly_hashed or ():
            written = self._written.get(request)
            if written is not None:  # its own line names those of a finished one
                numbers = self._numbers(request.hashes[written:])
                self._written[request] = len(request.hashes)
                self._write(type="blocks", seq=request.seq, hash_ids=numbers)
        if self._kv.newly_hashed is not None:  # the file may have ended just now
            self._kv.newly_hashed.clear()

    def _finished(self, request: Request) -> None:
        if self._file is None:
            return
        written = self._written.pop(request)
        self._write(
            type="request",
            seq=request.seq,
            arrival_s=request.arrival_s,
            input_tokens=request.prompt_len,
            output_tokens=len(request.output),
            hash_ids=self._numbers(request.hashes[written:]),
            tenant=request.tenant,
            priority=request.priority,
            finish_reason=request.finish_reason,
        )

    def _numbers(self, hashes: list[bytes]) -> list[int]:
        """Block hashes as numbers that JSON keeps exactly and nobody can trace back to tokens."""
        digests = (blake2b(key, key=self._key, digest_size=6).digest() for key in hashes)
        return [int.from_bytes(digest, "little") for digest in digests]

    def _write(self, **line: Any) -> None:
        if self._file is None:
            return
        try:
            self._file.write(self._encode(line) + b"\n")
        except OSError as error:
            self._warn(error)
            file = self._end()
            if file is not None:
                with contextlib.suppress(OSError):  # it would write the rest
                    file.close()

    def _warn(self, error: OSError) -> None:
        log.warning("the recording ends here; serving goes on", file=str(self._path), error=str(error))


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
    except (KeyError, TypeError, ValueError, IndexError, msgspec.ValidationError) as error:
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

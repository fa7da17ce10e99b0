"""Writes a recording while the server runs."""

from __future__ import annotations

import contextlib
import os
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ...policies.registry import PolicyFile
from ..errors import EvidenceError
from ..logs import get_logger
from ..request import FINISH_STOP, Request
from ..schedule.outcome import Update
from ..schedule.plan import StepPlan, StepResult
from ..schedule.scheduler import Scheduler
from ..workload.traces import RECORDING_VERSION

log = get_logger()


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

"""Recorded loads: Azure's CSV, Mooncake's JSON lines, and this server's own recording.

Of a recording (core/recording) only the header and the lines about finished requests are read here:
`{"type": "request", "seq", "arrival_s", "input_tokens", "output_tokens", "hash_ids", ...}`, and before it
`{"type": "blocks", "seq", "hash_ids"}` with the first of its blocks.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ..errors import EvidenceError

Format = Literal["auto", "azure", "mooncake", "recording"]
MOONCAKE_BLOCK_TOKENS = 512  # the trace's publication: a hash id stands for a block of 512 tokens
RECORDING_VERSION = 2


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request. `arrival_s` counts from the first; `hash_ids` name the prompt's full blocks."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """Rows by arrival, and how many tokens each hash id stands for."""

    format: str
    rows: tuple[TraceRow, ...]
    block_tokens: int = 0


def read_trace(path: Path, kind: Format = "auto", limit: int | None = None) -> RecordedTrace:
    """Reads a trace file, the first `limit` rows of it. Raises EvidenceError naming file and line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            first = lines.readline()
            found = _detect(path, first) if kind == "auto" else kind
            lines.seek(0)
            trace = _READERS[found](path, lines, limit)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from error
    if not trace.rows:
        raise EvidenceError(f"{path}: holds no requests")
    start = min(row.arrival_s for row in trace.rows)
    rows = (replace(row, arrival_s=row.arrival_s - start) for row in trace.rows)
    return replace(trace, rows=tuple(sorted(rows, key=lambda row: row.arrival_s)))


def _detect(path: Path, first: str) -> Literal["azure", "mooncake", "recording"]:
    if first.startswith("{"):
        try:
            head = json.loads(first)
        except (ValueError, RecursionError) as error:
            raise EvidenceError(f"{path}:1: not a JSON line: {error}") from error
        if head.get("type") == "recording":
            return "recording"
        if "input_length" in head:
            return "mooncake"
    elif "ContextTokens" in first:
        return "azure"
    raise EvidenceError(
        f"{path}: unknown trace format; known: azure (CSV with ContextTokens and GeneratedTokens), mooncake "
        "(JSON lines with input_length and output_length), recording (`engine serve --record`)"
    )


def _unusable(path: Path, line: int, error: Exception) -> EvidenceError:
    why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    return EvidenceError(f"{path}:{line}: unusable row: {why}")


def _tokens(value: Any, least: int = 1) -> int:
    try:
        number = int(value)
    except (ValueError, TypeError):
        number = -1
    if number < 0:
        raise ValueError(f"{value!r} is no number of tokens")
    return max(number, least)


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _azure(path: Path, lines: Any, limit: int | None) -> RecordedTrace:
    reader = csv.DictReader(lines)
    missing = [name for name in _AZURE if name not in (reader.fieldnames or ())]
    if missing:
        raise EvidenceError(f"{path}:1: the column {missing[0]} is missing")
    rows: list[TraceRow] = []
    for row in islice(reader, limit):
        try:
            for name in _AZURE:
                if row[name] is None:  # the line is too short
                    raise KeyError(name)
            moment = _timestamp(row["TIMESTAMP"])
            rows.append(TraceRow(moment, _tokens(row["ContextTokens"]), _tokens(row["GeneratedTokens"])))
        except (ValueError, TypeError, KeyError) as error:
            raise _unusable(path, reader.line_num, error) from error
    return RecordedTrace("azure", tuple(rows))


def _timestamp(text: str | None) -> float:
    """Seconds of `2023-11-16 18:17:03.9799600`, to the microsecond; in UTC unless it says otherwise."""
    try:
        moment = datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise ValueError(f"TIMESTAMP {text!r} is no time, such as 2023-11-16 18:17:03.97") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _json_lines(path: Path, lines: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number > 1 and not line.endswith("\n"):
                return  # cut short while it was written
            raise EvidenceError(f"{path}:{number}: not a JSON line: {error}") from error
        if not isinstance(record, dict):
            raise EvidenceError(f"{path}:{number}: a JSON object is needed")
        yield number, record


def _mooncake(path: Path, lines: Any, limit: int | None) -> RecordedTrace:
    rows: list[TraceRow] = []
    for number, record in islice(_json_lines(path, lines), limit):
        try:
            rows.append(
                TraceRow(
                    float(record["timestamp"]) / 1000,
                    _tokens(record["input_length"]),
                    _tokens(record["output_length"]),
                    tuple(int(value) for value in record.get("hash_ids", ())),
                )
            )
        except (KeyError, ValueError, TypeError) as error:
            raise _unusable(path, number, error) from error
    return RecordedTrace("mooncake", tuple(rows), MOONCAKE_BLOCK_TOKENS)


def check_recording_header(header: dict[str, Any]) -> None:
    """Raises EvidenceError unless a file's first line begins a recording that this release can read."""
    if header.get("type") != "recording":
        raise EvidenceError("not a recording: the first line has no type `recording`")
    if header.get("version") != RECORDING_VERSION:
        raise EvidenceError(
            f"a recording of version {header.get('version')}; this release reads version {RECORDING_VERSION}"
        )
    if not isinstance(header.get("block_tokens", 0), int):
        raise EvidenceError("a damaged recording: block_tokens is no whole number")


def _recording(path: Path, lines: Any, limit: int | None) -> RecordedTrace:
    records = _json_lines(path, lines)
    _, header = next(records, (0, {}))
    try:
        check_recording_header(header)
    except EvidenceError as error:
        raise EvidenceError(f"{path}:1: {error}") from error
    rows: list[TraceRow] = []
    blocks: dict[int, list[int]] = {}  # of requests that have not ended yet
    for number, record in records:
        kind = record.get("type")
        if kind not in ("request", "blocks"):
            continue
        try:
            seq = int(record["seq"])
            blocks.setdefault(seq, []).extend(int(value) for value in record["hash_ids"])
            if kind == "request":
                rows.append(_recorded(record, blocks.pop(seq)))
        except (KeyError, ValueError, TypeError) as error:
            raise _unusable(path, number, error) from error
    rows.sort(key=lambda row: row.arrival_s)  # lines are written as requests end
    return RecordedTrace("recording", tuple(rows[:limit]), header.get("block_tokens", 0))


def _recorded(record: dict[str, Any], hash_ids: list[int]) -> TraceRow:
    return TraceRow(
        float(record["arrival_s"]),
        _tokens(record["input_tokens"]),
        _tokens(record["output_tokens"]),
        tuple(hash_ids),
        str(record.get("tenant", "")),
        int(record.get("priority", 0)),
    )


_READERS: dict[str, Callable[[Path, Any, int | None], RecordedTrace]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "recording": _recording,
}

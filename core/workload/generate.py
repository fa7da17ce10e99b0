"""Turns the written form of a load into its requests; the same seed gives the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from .content import ANSWER, HASH, PREFIX, PROMPT, Segment, WorkloadRequest
from .lengths import Length
from .schema import Bursts, Class, Poisson, Sessions, Trace, WorkloadShape
from .traces import RecordedTrace, TraceRow

# One random stream for each thing drawn, so that changing one leaves the others alone.
_ARRIVALS, _INPUTS, _OUTPUTS, _GROUPS, _CLASSES, _TURNS = range(6)


def _stream(shape: WorkloadShape, which: int) -> np.random.Generator:
    return np.random.default_rng([shape.seed, which])


@dataclass(frozen=True, slots=True)
class _Columns:
    """One entry a request: lengths, the part shared with its group, and its class in the mix."""

    inputs: np.ndarray
    outputs: np.ndarray
    shared: np.ndarray
    groups: np.ndarray
    classes: np.ndarray


def generate(shape: WorkloadShape, trace: RecordedTrace | None) -> Iterator[WorkloadRequest]:
    """The requests in order of arrival (a session's turns follow each other)."""
    arrival = shape.arrival
    if isinstance(arrival, Trace):
        assert trace is not None  # load_workload read it
        return _from_trace(shape, arrival, trace)
    if isinstance(arrival, Sessions):
        return _sessions(shape, arrival)
    return _independent(shape, _arrival_times(shape), arrival.requests)


def _arrival_times(shape: WorkloadShape) -> np.ndarray | None:
    """float64 [requests] seconds, ascending from the first arrival; None for a closed loop."""
    arrival, rng = shape.arrival, _stream(shape, _ARRIVALS)
    if isinstance(arrival, Poisson):
        return _at_rate(rng.gamma(arrival.burstiness, size=arrival.requests - 1), arrival.rate)
    if isinstance(arrival, Bursts):
        return _burst_times(arrival, rng)
    return None


def _at_rate(gaps: np.ndarray, rate: float) -> np.ndarray:
    """Arrivals [gaps + 1] from 0 on, the gaps scaled so that their mean is `rate`'s own: a few hundred drawn ones miss it
    by 5 to 10 %, and so would everything that is told of the rate.
    """
    if not len(gaps):
        return np.zeros(1)
    return np.concatenate([[0.0], np.cumsum(gaps / (gaps.mean() * rate))])


def _burst_times(arrival: Bursts, rng: np.random.Generator) -> np.ndarray:
    bursts = -(-arrival.requests // arrival.size)
    times = np.repeat(np.arange(bursts) * arrival.interval_s, arrival.size)
    if arrival.rate > 0:
        between = np.cumsum(rng.exponential(1 / arrival.rate, size=arrival.requests))
        times = np.sort(np.concatenate([times, between]), kind="stable")
    return times[: arrival.requests]


def _lengths(
    shape: WorkloadShape, which: str, stream: int, classes: np.ndarray, limit: int | None
) -> np.ndarray:
    rng, result = _stream(shape, stream), np.zeros(len(classes), dtype=np.int64)
    for number in range(max(len(shape.mix), 1)):
        chosen = classes == number
        own: Length | None = getattr(shape.mix[number], which) if shape.mix else None
        length = own or getattr(shape, which)
        if length is not None:
            result[chosen] = length.draw(rng, int(chosen.sum()))
    return np.minimum(result, limit) if limit else result


def _columns(shape: WorkloadShape, count: int) -> _Columns:
    classes = np.zeros(count, dtype=np.int64)
    if shape.mix:
        weights = np.array([member.weight for member in shape.mix])
        classes = _stream(shape, _CLASSES).choice(len(weights), size=count, p=weights / weights.sum())
    inputs = _lengths(shape, "input_tokens", _INPUTS, classes, shape.max_input_tokens)
    outputs = _lengths(shape, "output_tokens", _OUTPUTS, classes, shape.max_output_tokens)
    own = [member.shared_prefix_tokens for member in shape.mix] or [None]
    shared = np.array([shape.shared_prefix_tokens if s is None else s for s in own])[classes]
    groups = _stream(shape, _GROUPS).integers(0, shape.shared_prefix_groups, size=count)
    apart = np.array([0 if s is None else number << 40 for number, s in enumerate(own, 1)])
    groups += apart[classes]  # a class with a prefix of its own shares it with nobody else
    return _Columns(inputs, outputs, shared, groups, classes)


def _whose(shape: WorkloadShape, number: int) -> tuple[str, int, float | None]:
    """Tenant, priority and deadline of a request of a class."""
    member = shape.mix[number] if shape.mix else Class()
    return (
        shape.tenant if member.tenant is None else member.tenant,
        shape.priority if member.priority is None else member.priority,
        member.deadline_ms,
    )


def _segments(index: int, inputs: int, shared: int, group: int) -> tuple[Segment, ...]:
    prefix = Segment(PREFIX | group, shared)
    own = Segment(PROMPT | index, inputs - shared)
    return tuple(segment for segment in (prefix, own) if segment.tokens)


def _independent(shape: WorkloadShape, times: np.ndarray | None, count: int) -> Iterator[WorkloadRequest]:
    columns = _columns(shape, count)
    whose = [_whose(shape, number) for number in range(max(len(shape.mix), 1))]
    arrivals = [None] * count if times is None else times.tolist()
    rows = zip(
        arrivals,
        columns.inputs.tolist(),
        columns.outputs.tolist(),
        np.minimum(columns.shared, columns.inputs).tolist(),
        columns.groups.tolist(),
        columns.classes.tolist(),
        strict=True,
    )
    for index, (arrival_s, inputs, outputs, shared, group, member) in enumerate(rows):
        tenant, priority, deadline_ms = whose[member]
        yield WorkloadRequest(
            index,
            arrival_s,
            inputs,
            outputs,
            _segments(index, inputs, shared, group),
            ANSWER | index,
            tenant=tenant,
            priority=priority,
            deadline_ms=deadline_ms,
        )


def _sessions(shape: WorkloadShape, arrival: Sessions) -> Iterator[WorkloadRequest]:
    turns = arrival.turns.draw(_stream(shape, _TURNS), arrival.sessions)
    columns = _columns(shape, int(turns.sum()))
    starts: list[float | None] = [None] * arrival.sessions
    if arrival.rate is not None:
        gaps = _stream(shape, _ARRIVALS).exponential(size=arrival.sessions - 1)
        starts = _at_rate(gaps, arrival.rate).tolist()
    first, emitted = np.cumsum(turns) - turns, 0
    for session, start in enumerate(starts):
        block = slice(int(first[session]), int(first[session] + turns[session]))
        for request in _session_turns(shape, arrival, columns, block, emitted):
            arrival_s = start if request.turn == 0 else None
            emitted += 1
            think_s = arrival.think_s if request.turn else 0.0
            yield replace(request, session=session, arrival_s=arrival_s, think_s=think_s)


def _session_turns(
    shape: WorkloadShape, arrival: Sessions, columns: _Columns, block: slice, index: int
) -> Iterator[WorkloadRequest]:
    """The turns of one session: each prompt is the last prompt, its answer and new tokens."""
    segments: tuple[Segment, ...] = ()
    held = 0
    for turn, at in enumerate(range(block.start, block.stop)):
        shared = 0 if turn else int(columns.shared[at])
        inputs, outputs = int(columns.inputs[at]) + shared, int(columns.outputs[at])
        if arrival.max_context_tokens and held + inputs + outputs > arrival.max_context_tokens:
            if turn:
                return
            inputs = max(1, min(inputs, arrival.max_context_tokens - 1))
            outputs = max(1, min(outputs, arrival.max_context_tokens - inputs))
        member = int(columns.classes[at])
        group = int(columns.groups[at])
        segments = (*segments, *_segments(index, inputs, min(shared, inputs), group))
        tenant, priority, deadline_ms = _whose(shape, member)
        yield WorkloadRequest(
            index,
            None,
            held + inputs,
            outputs,
            segments,
            ANSWER | index,
            turn=turn,
            after=index - 1 if turn else -1,
            tenant=tenant,
            priority=priority,
            deadline_ms=deadline_ms,
        )
        segments = (*segments, Segment(ANSWER | index, outputs))
        held += inputs + outputs
        index += 1


def _from_trace(shape: WorkloadShape, arrival: Trace, trace: RecordedTrace) -> Iterator[WorkloadRequest]:
    rows = trace.rows[: arrival.requests]
    drawn = _columns(shape, len(rows))
    for index, row in enumerate(rows):
        inputs = int(drawn.inputs[index]) or min(row.input_tokens, shape.max_input_tokens or row.input_tokens)
        outputs = int(drawn.outputs[index]) or min(
            row.output_tokens, shape.max_output_tokens or row.output_tokens
        )
        shared = min(shape.shared_prefix_tokens, inputs)
        hashed = row.hash_ids and not shared
        yield WorkloadRequest(
            index,
            None if arrival.concurrency else row.arrival_s / arrival.speed,
            inputs,
            outputs,
            _hashed_segments(index, inputs, row, trace.block_tokens)
            if hashed
            else _segments(index, inputs, shared, int(drawn.groups[index])),
            ANSWER | index,
            tenant=row.tenant or shape.tenant,
            priority=row.priority or shape.priority,
        )


def _hashed_segments(index: int, inputs: int, row: TraceRow, block_tokens: int) -> tuple[Segment, ...]:
    """Segments of the blocks that the trace names; what they do not cover is the request's own."""
    full, rest = divmod(inputs, block_tokens)
    segments = [Segment(HASH | (key & (1 << 64) - 1), block_tokens) for key in row.hash_ids[:full]]
    rest += (full - len(segments)) * block_tokens
    if rest:
        last = row.hash_ids[full] if len(row.hash_ids) > full else None
        segments.append(Segment(PROMPT | index if last is None else HASH | (last & (1 << 64) - 1), rest))
    return tuple(segments)

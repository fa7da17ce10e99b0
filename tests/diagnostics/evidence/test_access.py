"""This engine's own log: options, and the load in its access lines."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.evidence import Evidence, LoadHints, read_log_lines

OPTIONS = (
    "INFO 11-30 19:07:15 [server.py:126] configuration model=m max_num_seqs=32 device=cpu api_key='(set)'"
)
ACCESS = (
    "(APIServer pid=1) INFO 11-30 19:08:{:02} [gate.py:121] access method=POST path=/v1/completions status={} "
    "duration_ms={} client=127.0.0.1:1 prompt_tokens={} completion_tokens={} finish=stop request_id=r"
)
STATS = (
    "INFO 11-30 19:09:00 [server.py:261] Engine 000: Avg prompt throughput: {0}.0 tokens/s, Avg generation throughput: "
    "{0}.0 tokens/s, Running: {0} reqs, Waiting: 0 reqs, CPU KV cache usage: 0.0%, Prefix cache hit rate: 9.0%"
)


def test_access_lines_are_the_load_as_it_came() -> None:
    lines = [
        ACCESS.format(10, 200, 2000.0, 30, 8),
        ACCESS.format(10, 200, 100.0, 40, 4),
        ACCESS.format(12, 503, 100.0, 99, 9),
        ACCESS.format(14, 200, 100.0, 50, 6),
    ]
    evidence = read_log_lines(lines, "log")
    assert evidence.value("input_tokens", "mean") == 40
    assert evidence.value("e2e_ms", "p50") == 100
    assert (min(evidence.lengths["output_tokens"]), max(evidence.lengths["output_tokens"])) == (4, 8)
    assert evidence.recorded is not None
    rows = [(r.arrival_s, r.input_tokens, r.output_tokens) for r in evidence.recorded.requests()]
    assert [(i, o) for _, i, o in rows] == [(30, 8), (40, 4), (50, 6)]
    assert [at for at, _, _ in rows] == pytest.approx(
        [0, 2.4, 6.15]
    )  # of one second's lines, the second ends later
    assert Evidence(load=[LoadHints(request_rate_per_s=2.0)]).merge(evidence).recorded is None


def test_where_most_are_still_in_the_server_the_lines_tell_lengths_and_no_arrivals() -> None:
    evidence = read_log_lines([ACCESS.format(10, 200, 9.0, 30, 8), STATS.format(7)], "log")
    assert evidence.recorded is None
    assert evidence.lengths["input_tokens"][0] == 30
    assert any("7 requests still in the server" in note for note in evidence.notes)


def test_options_of_the_log_are_read_and_secrets_are_not() -> None:
    evidence = read_log_lines([OPTIONS], "log")
    assert {s.name: s.value for s in evidence.settings} == {"model": "m", "max_num_seqs": 32, "device": "cpu"}


@pytest.mark.parametrize(("at_once", "idle"), [(0, True), (1, False)])
def test_a_server_that_nobody_asks_anything_is_idle(at_once: int, idle: bool) -> None:
    assert read_log_lines([OPTIONS, STATS.format(at_once)], "log").idle is idle

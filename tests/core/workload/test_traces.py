"""Recorded loads are read as they were, or refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from camshaft.core.errors import ConfigError, EvidenceError
from camshaft.core.workload import (
    TraceRow,
    load_workload,
    read_trace,
    segment_tokens,
)

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,0
2023-11-16 18:17:05.0781490,110,27
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 2500, "input_length": 1024, "output_length": 6, "hash_ids": [0, 1]}
{"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}
"""


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_azure(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "a.csv", AZURE))
    assert trace.format == "azure"
    assert [row.arrival_s for row in trace.rows] == pytest.approx([0, 0.052, 1.098189], abs=1e-5)
    assert [(row.input_tokens, row.output_tokens) for row in trace.rows] == [(4808, 10), (3180, 1), (110, 27)]
    assert len(read_trace(write(tmp_path, "a.csv", AZURE), limit=2).rows) == 2


def test_a_trace_as_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"\xef\xbb\xbf" + AZURE.replace("\n", "\r\n").encode())
    assert read_trace(file) == read_trace(write(tmp_path, "b.csv", AZURE))


def test_times_with_and_without_a_fraction_and_a_zone(tmp_path: Path) -> None:
    times = ["2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", "2024-05-10T02:00:02Z"]
    rows = "".join(f"{time},5,5\n" for time in [*times, "2024-05-10 02:00:02.5", "2024-05-10 04:00:03+02:00"])
    trace = read_trace(write(tmp_path, "a.csv", AZURE.partition("\n")[0] + "\n" + rows))
    assert [row.arrival_s for row in trace.rows] == pytest.approx(
        [0, 0.99007, 7201.99007, 7202.49007, 7202.99007], abs=1e-5
    )


def test_mooncake_blocks_are_shared_tokens(tmp_path: Path) -> None:
    write(tmp_path, "m.jsonl", MOONCAKE)
    rows = list(load_workload({"arrival": {"kind": "trace", "file": str(tmp_path / "m.jsonl")}}).requests())
    prompts = [segment_tokens(row.segments, 1000).tolist() for row in rows]
    assert [len(prompt) for prompt in prompts] == [1100, 1024, 600]
    assert [row.arrival_s for row in rows] == [0, 2.5, 2.5]
    assert prompts[1] == prompts[0][:1024]
    assert prompts[2][:512] == prompts[0][:512]
    assert prompts[2][512:] != prompts[0][512:600]


def request_line(arrival_s: float, inputs: int, outputs: int, hashes: list[int], **more: object) -> str:
    line = {
        "type": "request",
        "seq": 0,
        "arrival_s": arrival_s,
        "input_tokens": inputs,
        "output_tokens": outputs,
    }
    return json.dumps({**line, "hash_ids": hashes, **more}) + "\n"


def blocks_line(seq: int, hashes: list[int]) -> str:
    return json.dumps({"type": "blocks", "seq": seq, "hash_ids": hashes}) + "\n"


HEADER = '{"type": "recording", "version": 2, "block_tokens": 16, "model": "m"}\n'


def test_the_requests_of_a_recording_are_a_workload(tmp_path: Path) -> None:
    late = request_line(1.5, 40, 3, [9], seq=1, tenant="team", priority=2)  # 9 is a block of the answer
    begun = "".join(blocks_line(seq, hashes) for seq, hashes in ((1, [7]), (2, [5]), (1, [8])))
    text = HEADER + '{"type": "step", "step": 1}\n' + begun + late + request_line(0.25, 20, 0, [7])
    trace = read_trace(write(tmp_path, "r.jsonl", text))
    assert trace.rows == (TraceRow(0.0, 20, 1, (7,)), TraceRow(1.25, 40, 3, (7, 8, 9), "team", 2))
    rows = list(load_workload(tmp_path / "r.jsonl").requests())
    assert [[segment.tokens for segment in row.segments] for row in rows] == [[16, 4], [16, 16, 8]]
    assert rows[0].segments[0] == rows[1].segments[0]
    torn = write(tmp_path, "torn.jsonl", text + request_line(2.0, 5, 5, [])[:-4])  # by a killed server
    assert read_trace(torn).rows == trace.rows


def test_a_trace_can_be_played_faster_cut_and_in_a_closed_loop(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", AZURE)
    arrival = {"kind": "trace", "file": "a.csv", "speed": 2}
    file = tmp_path / "w.yaml"
    file.write_text(f"arrival: {arrival}\nmax_input_tokens: 100\noutput_tokens: 4\n")
    workload = load_workload(file)
    rows = list(workload.requests())
    assert rows[-1].arrival_s == pytest.approx(1.098189 / 2, abs=1e-5)
    assert {(row.input_tokens, row.output_tokens) for row in rows} == {(100, 4)}
    assert [row.arrival_s for row in workload.at_concurrency(2).requests()] == [None] * 3
    assert workload.first(2).count == 2
    assert workload.at_rate(4).summary().rate == pytest.approx(4)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "unknown trace format; known: azure"),
        ("a.csv", "TIMESTAMP,ContextTokens\n", "GeneratedTokens is missing"),
        (
            "a.csv",
            AZURE + "2023-11-16 18:17:09.1,x,3\n",
            r"a.csv:5: unusable row: 'x' is no number of tokens$",
        ),
        ("a.csv", AZURE + "2023-11-16 18:17:09.1,3\n", r"a.csv:5: unusable row: GeneratedTokens is missing$"),
        ("a.csv", AZURE + "yesterday,3,3\n", r"a.csv:5: unusable row: TIMESTAMP 'yesterday' is no time"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        ("m.jsonl", MOONCAKE + '{"timestamp": 3}\n', r"m.jsonl:4: unusable row: input_length is missing$"),
        ("m.jsonl", MOONCAKE + "{nonsense\n", r"m.jsonl:4: not a JSON line"),
        ("m.jsonl", MOONCAKE + "[1]\n", r"m.jsonl:4: a JSON object"),
        (
            "m.jsonl",
            MOONCAKE + '{"timestamp": 1, "input_length": -4, "output_length": 1}\n',
            r"m.jsonl:4: unusable row",
        ),
        ("r.jsonl", '{"type": "recording", "version": 9}\n', r"r.jsonl:1: a recording of version 9"),
        ("r.jsonl", HEADER.replace("16", '"x"'), r"r.jsonl:1: .* block_tokens is no whole number"),
        ("r.jsonl", HEADER + '{"type": "request", "seq": 0}\n', r"r.jsonl:2: unusable row"),
    ],
)
def test_a_wrong_trace_is_refused_with_file_and_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(EvidenceError, match=message):
        read_trace(write(tmp_path, name, text))


def test_the_busiest_stretch_of_a_trace_says_that_it_is_one(tmp_path: Path) -> None:
    at_ms = [0, 9000, 9100, 9200, 20000]
    lines = "".join(
        json.dumps({"timestamp": t, "input_length": t + 1, "output_length": 2}) + "\n" for t in at_ms
    )
    whole = load_workload(str(write(tmp_path, "quiet.jsonl", lines)))
    busiest = whole.busiest(3)
    assert [r.arrival_s for r in busiest.requests()] == pytest.approx([0, 0.1, 0.2])
    assert [r.input_tokens for r in busiest.requests()] == [9001, 9101, 9201]
    assert busiest.count == 3
    assert busiest.name == f"{whole.name}, the busiest 3 of its 5 requests"


def test_hashes_without_a_block_size_are_refused(tmp_path: Path) -> None:
    text = '{"type": "recording", "version": 2}\n' + request_line(0, 20, 2, [1])
    with pytest.raises(ConfigError, match="does not say block_tokens"):
        load_workload(write(tmp_path, "r.jsonl", text))

"""The parent of a run: what it makes of parts that die, fall silent or never come to an end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import run
from tests.gpu.verdict import sheet, verdicts

STUB = """
import sys, time
arguments = sys.argv
file = open(arguments[arguments.index("--records") + 1], "w")
print('{"check": "a"}', file=file, flush=True)
print('{"check": "a", "ok": true}', file=file, flush=True)
how = arguments[1]
if how == "half":
    print('{"check": "b"', end="", file=file, flush=True)
if how == "hang":
    time.sleep(60)
if how == "talk":
    for _ in range(600):
        print('{"check": "c"}', file=file, flush=True)
        time.sleep(0.1)
sys.exit(3 if how == "fail" else 0)
"""


@pytest.mark.parametrize(
    ("how", "trouble"),
    [
        ("well", ""),
        ("fail", "exit status 3"),
        ("half", ""),
        ("hang", "silent for 1 s"),
        ("talk", "not done after 2 s"),
    ],
)
def test_a_part_that_goes_wrong_says_how_and_keeps_its_records(
    how: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    monkeypatch.setattr(run, "__file__", str(stub))
    records, found = run.run_part([how], 2.0 if how == "talk" else 30.0, silence_s=1.0)
    assert found == trouble
    assert records[:2] == [{"check": "a"}, {"check": "a", "ok": True}]


def test_every_check_has_a_record_whatever_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second kills its process, the third breaks the device, the fifth is never come to."""
    planned = ["a", "b", "c", "d", "e"]
    starts: list[int] = []

    def part(arguments: list[str], limit_s: float, **_: Any) -> tuple[list[dict[str, Any]], str]:
        if arguments[1].startswith("1/"):
            return [{"planned": []}], ""
        skip = int(arguments[arguments.index("--skip") + 1])
        starts.append(skip)
        told: list[dict[str, Any]] = [{"planned": planned}]
        for name in planned[skip:]:
            told.append({"check": name})
            if name == "b":
                return told, "exit status -11"
            told.append({"check": name, "ok": name != "c", "s": 1.0, "error": None})
            if name == "c":
                return told, "exit status 3"
            if name == "d":
                monkeypatch.setattr(run.time, "monotonic", lambda: 1e12)
                return told, "not done after 9 s"
        return told, ""

    monkeypatch.setattr(run, "run_part", part)
    records = run.run_checks(1, 1e11, "")
    assert [(record["check"], record["ok"]) for record in records] == [
        ("a", True),
        ("b", False),
        ("c", False),
        ("d", True),
        ("e", None),
        ("device-memory", None),
    ]
    assert starts == [0, 2, 3]


def test_a_worker_that_never_starts_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_part", lambda arguments, limit_s, **_: ([], "exit status 1"))
    records = run.run_checks(2, 1e12, "")
    assert [record["check"] for record in records] == ["worker 0", "worker 1", "worker 2", "device-memory"]
    assert [record["ok"] for record in records] == [False, False, False, None]


def test_a_check_that_the_end_of_the_time_meets_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(arguments: list[str], limit_s: float, **_: Any) -> tuple[list[dict[str, Any]], str]:
        monkeypatch.setattr(run.time, "monotonic", lambda: 1e12)
        return [{"planned": ["a", "b"]}, {"check": "a"}], "not done after 9 s"

    monkeypatch.setattr(run, "run_part", part)
    records = run.run_checks(1, 1e11, "")
    assert [(record["check"], record["ok"]) for record in records] == [
        ("a", None),
        ("b", None),
        ("device-memory", None),
    ]


def test_a_section_whose_process_dies_goes_on_behind_the_job_it_was_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skipped: list[int] = []

    def part(arguments: list[str], limit_s: float, **_: Any) -> tuple[list[dict[str, Any]], str]:
        skip = int(arguments[arguments.index("--skip") + 1])
        skipped.append(skip)
        if skip:
            return [{"job": "job 3 of 3"}, {"what": "c"}], ""
        return [{"job": "job 1 of 3"}, {"what": "a"}, {"job": "job 2 of 3"}], "exit status -11"

    monkeypatch.setattr(run, "run_part", part)
    rows, trouble = run.measure("attention", 9.0, {}, 1e12)
    assert [row["what"] for row in rows] == ["a", "c"]
    assert trouble == "job 2 of 3: exit status -11"
    assert skipped == [0, 2]
    monkeypatch.setattr(run, "run_part", lambda *_, **__: ([], "exit status 1"))
    assert run.measure("attention", 9.0, {}, 1e12) == ([], "before the first job: exit status 1")
    assert run.measure("attention", 9.0, {}, 0.0) == ([], "out of time")


def test_what_was_not_run_is_never_met() -> None:
    (line, *_) = verdicts([{"check": "rope bfloat16", "ok": True}, {"check": "rms bfloat16", "ok": None}], [])
    assert line["verdict"] == "unknown"
    assert "1 of 2; not run: rms bfloat16" in line["found"]


def timed(rows: list[dict[str, Any]], line: int) -> str:
    return verdicts([], rows)[line - 5]["verdict"]


def test_a_timing_is_met_by_every_row_that_is_due_and_by_none_without_a_rate() -> None:
    row = {"judged": "decode-bf16", "of_copy": 0.9, "target": 0.85}
    assert timed([row, row], 0) == "met"
    assert timed([row], 0) == "unknown"
    assert timed([row, row | {"of_copy": float("nan")}], 0) == "unknown"
    assert timed([row | {"of_copy": 0.8}], 0) == "missed"
    assert timed([{"judged": "gap", "gap_us": 30.0, "target_us": 100.0}], 4) == "met"
    assert timed([{"judged": "gap", "gap_us": 130.0, "target_us": 100.0}], 4) == "missed"


MACHINE = {"gpu": "NVIDIA H200", "torch": "2.11.0", "memory_gib": 139.8, "l2_mib": 60.0, "capability": "9.0"}


def test_the_sheet_is_one_that_predictions_take(tmp_path: Path) -> None:
    from camshaft.diagnostics.cost.hardware import read_hardware

    path = tmp_path / "sheet.yaml"
    written = sheet(MACHINE, {"copy": 4.3e12, "matmul": 0.79e15, "matmul_fp8": 1.4e15})
    assert written is not None
    path.write_text(written)
    found = read_hardware(path)
    assert found.memory_bandwidth_gb_s == pytest.approx(4800, rel=0.01)
    assert found.peak_flops("bfloat16") == pytest.approx(989e12, rel=0.01)
    assert found.peak_flops("fp8") > 1.8e15
    assert "4.3" in found.source
    assert sheet(MACHINE, {"copy": 4.3e12}) is None
    assert sheet({}, {"copy": 4.3e12, "matmul": 0.79e15}) is None

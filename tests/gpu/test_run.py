"""The parent of a run: what it makes of parts that die, fall silent or never come to an end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import run
from tests.gpu.verdict import verdicts

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
    ]
    assert starts == [0, 2, 3]


def test_a_worker_that_never_starts_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_part", lambda arguments, limit_s, **_: ([], "exit status 1"))
    records = run.run_checks(2, 1e12, "")
    assert [record["check"] for record in records] == ["worker 0", "worker 1", "worker 2"]


def test_what_was_not_run_is_never_met() -> None:
    (line, *_) = verdicts([{"check": "rope bfloat16", "ok": True}, {"check": "rms bfloat16", "ok": None}], [])
    assert line["verdict"] == "unknown"
    assert "1 of 2; not run: rms bfloat16" in line["found"]

"""The script that proves the GPU path, as far as it goes without one: its imports, its shapes, its verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.verdict import TIMED, table, verdicts  # noqa: E402

# What a GPU machine lacks of the product's own dependencies.
ABSENT = (
    "pydantic",
    "structlog",
    "fastapi",
    "click",
    "msgspec",
    "zmq",
    "rich",
    "httpx",
    "numba",
    "pytest",
)
PROBE = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / ".pkg")!r}]
"""


def run_without(code: str) -> str:
    """What a process prints in which the absent packages cannot be imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROBE + code]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def test_every_part_imports_with_little_installed_and_the_host_loop_runs() -> None:
    code = """
import json
import tests.gpu.timings
from tests.gpu.sections import jobs, run_section
from tests.gpu.sheet_checks import SHEETS, sheets
run_section("host-dry", {}, lambda row: print(json.dumps(row)))
print(json.dumps([[check.name for check, _ in jobs(False)], len(sheets()), len(list(SHEETS.glob("*.yaml")))]))
"""
    host, rest = map(json.loads, run_without(code).splitlines())
    assert host["steps"] > 0
    assert host["wall_us"] >= host["host_us"] > 0
    names, read, there = rest
    assert there - 5 <= read <= there  # sheets of attention over latent vectors are left out
    for part in (
        "attention",
        "rms-norm",
        "quantize-rows",
        "experts-fp8",
        "sample",
        "tokens-",
        "graph",
        "executor",
        "device",
    ):
        assert any(name.startswith(part) for name in names), part
    assert "sheet-attention-64h8-d128" in names
    assert "sheet-fp8-65x8192x28672-blocks" in names


@pytest.mark.parametrize("name", ["attention-d64-g1-p16-n4-1of17", "tokens-mixtral"])
def test_a_dry_run_checks_through_the_interpreter(name: str) -> None:
    command = [sys.executable, "tests/gpu/run.py", "--dry", "--only", name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert "1 of 1 checks passed" in run.stdout


GOOD: list[dict[str, Any]] = [
    {"judged": "decode-bf16", "of_copy": 0.9, "target": 0.85, "what": "a", "us": 1.0},
    {"judged": "decode-fp8", "of_copy": 0.75, "target": 0.75, "what": "b", "us": 1.0},
    {"judged": "prefill", "of_matmul": 0.61, "target": 0.6, "what": "c", "us": 1.0},
    {"judged": "step", "of_copy": 0.8, "target": 0.8, "what": "d", "us": 1.0},
    {"judged": "gap", "gap_us": 20.0, "target_us": 100.0, "what": "e", "us": 1.0},
    {"judged": None, "what": "f"},
]
CHECKS = [
    {"check": f"{name} bfloat16", "ok": True}
    for name in (
        "rope-kv-write",
        "sheet-sample-9",
        "tokens-llama",
        "graph-equals-eager",
        "executor-draws-alike",
    )
]


def test_the_verdict_has_a_line_for_each_thing_judged() -> None:
    lines = verdicts(CHECKS, GOOD * 2)  # of decode attention two rows are due
    assert len(lines) == 5 + len(TIMED)
    assert {line["verdict"] for line in lines} == {"met"}
    assert {line["verdict"] for line in verdicts([], [])} == {"unknown"}


@pytest.mark.parametrize("which", range(5))
def test_a_missed_target_and_a_failed_check_show(which: int) -> None:
    rows = [dict(row) for row in GOOD]
    rows[which] |= {"of_copy": 0.1, "of_matmul": 0.1} if which < 4 else {"gap_us": 130.0}
    checks = [dict(check) for check in CHECKS]
    checks[which]["ok"] = False
    missed = [line for line in verdicts(checks, rows) if line["verdict"] == "missed"]
    assert len(missed) == 2
    assert checks[which]["check"] in missed[0]["found"]


def test_the_table_shows_what_a_row_reaches_even_where_no_rate_was_measured() -> None:
    assert "copy 3.00 TB/s" in table({"copy": 3e12, "matmul": 7e14}, GOOD)
    assert "of copy" in table({}, GOOD)

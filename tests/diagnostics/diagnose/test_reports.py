"""Servers as people report them, through logs, metrics, figures or a configuration alone: the right knob, or none.

What is right follows from arithmetic or from what helped in the report, and each case has words that the diagnosis must
show. `reports` have a thread behind them, and `composed` says which of their parts it does not give; all of a case in
`arithmetic` is composed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from camshaft.core.workload import load_workload
from camshaft.diagnostics.diagnose import Report, diagnose, read_subject
from camshaft.diagnostics.evidence import metrics_evidence, observed_mapping, parse, read_log_lines
from camshaft.diagnostics.report import text
from camshaft.diagnostics.results import parse_targets

HERE = Path(__file__).parent
REPORTS, ARITHMETIC = (
    {path.stem: yaml.safe_load(path.read_text()) for path in sorted((HERE / folder).glob("*.yaml"))}
    for folder in ("reports", "arithmetic")
)
CASES = {**REPORTS, **ARITHMETIC}


def _examined(case: dict[str, Any], folder: Path) -> Report:
    evidence = observed_mapping(case.get("observed") or {}, "observed")
    evidence = evidence.merge(read_log_lines(case.get("log") or [], "server.log"))
    if pages := [parse(page, f"page {n}") for n, page in enumerate(case.get("metrics") or [])]:
        evidence = evidence.merge(metrics_evidence(pages[-1], pages[0] if len(pages) > 1 else None))
    source, engine = case.get("command"), case.get("engine")
    if "config" in case:
        source, engine = str(folder / "serve.yaml"), engine or "vllm"
        Path(source).write_text(yaml.safe_dump(case["config"]))
    subject = read_subject(source, evidence, engine=engine, version=case.get("version"), gpu=case.get("gpu"))
    load = load_workload(case["workload"]) if "workload" in case else None
    return diagnose(subject, evidence, workload=load, targets=parse_targets(case.get("slo")))


@pytest.mark.parametrize("name", CASES)
def test_names_the_right_knob_or_none(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    expected = case["expected"]
    report = _examined(case, tmp_path)
    verdict = report.verdict
    assert verdict.bottleneck in expected["bottleneck"]
    assert verdict.knob in expected["knobs"]
    assert verdict.direction == (expected["direction"] or verdict.direction)
    turned = {verdict.knob, f"{verdict.knob}+" if verdict.direction == "raise" else None}
    forbidden = set(expected.get("forbidden", ()))
    assert not turned & forbidden
    assert not forbidden & {p.proposal.knob for p in report.alternatives if p.worth == "gains"}
    shown = text.render(report).lower()
    for mention in expected["mentions"]:
        assert mention.lower() in shown
    if verdict.knob is not None and verdict.bottleneck not in ("kv_does_not_fit", "weights_do_not_fit"):
        assert report.before is not None
        assert report.after is not None
        assert report.before.result != report.after.result


def test_a_case_says_where_it_comes_from_and_what_is_composed() -> None:
    assert len(CASES) == len(REPORTS) + len(ARITHMETIC)
    assert all(case["expected"]["mentions"] for case in CASES.values())
    assert all(
        case["source"].startswith("https://") and case["composed"] != "everything"
        for case in REPORTS.values()
    )
    assert all(
        case["source"].startswith("arithmetic") and case["composed"] == "everything"
        for case in ARITHMETIC.values()
    )

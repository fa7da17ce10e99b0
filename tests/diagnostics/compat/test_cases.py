"""Public reports of broken upgrades: the checker gives each the verdict its readers were given too late."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from camshaft.diagnostics.compat.checks.findings import Finding, Result
from camshaft.diagnostics.compat.inputs.read import read_command, read_text
from camshaft.diagnostics.compat.run import check_all
from camshaft.diagnostics.cost.devices import find_device

FOLDER = Path(__file__).with_name("cases")
CASES: dict[str, dict[str, Any]] = {}
for path in sorted(FOLDER.glob("*.yaml")):
    CASES |= yaml.safe_load(path.read_text(encoding="utf-8"))
VERDICTS = [(name, target) for name, case in CASES.items() for target in case["targets"]]


@cache  # two tests ask for each
def verdict(name: str, target: str) -> Result:
    case = CASES[name]
    if "settings" in case:
        configurations = read_text(case["settings"], "settings.yaml")
    elif "manifest" in case:
        configurations = read_text(case["manifest"], "manifest.yaml")
    elif "file" in case:
        configurations = read_text(case["file"], case["name"])
    elif "script" in case:
        configurations = read_text(case["script"], "serve.py")
    else:
        configurations = read_command(case["command"])
    device = find_device(case["gpu"]) if "gpu" in case else None
    (result,) = check_all(
        configurations, start=case.get("from"), targets=[target], model=case.get("model"), device=device
    )
    return result


def fits(finding: Finding, expected: dict[str, Any]) -> bool:
    if finding.change != expected["change"] or finding.severity != expected["severity"]:
        return False
    if not set(expected.get("flags", [])) <= set(finding.flags):
        return False
    return set(expected.get("env", [])) <= set(finding.env) and expected.get("fix", "") in (finding.fix or "")


@pytest.mark.parametrize(("name", "target"), VERDICTS)
def test_verdict(name: str, target: str) -> None:
    case, expected = CASES[name], CASES[name]["targets"][target]
    result = verdict(name, target)
    assert result.starts is expected["starts"], result.findings
    for wanted in expected.get("findings", []):
        assert any(fits(finding, wanted) for finding in result.findings), (wanted, result.findings)
    loud = [finding for finding in result.findings if finding.severity != "info"]
    if expected.get("quiet"):
        assert loud == []
    named = {flag for finding in loud for flag in finding.flags}
    assert named.isdisjoint(case.get("silent", []))
    text = " ".join(f"{f.message} {f.fix} {' '.join(f.flags)}" for f in result.findings)
    for mention in expected.get("mentions", case.get("mentions", [])):
        assert mention in text


@pytest.mark.parametrize(("name", "target"), VERDICTS)
def test_every_finding_is_complete(name: str, target: str) -> None:
    for finding in verdict(name, target).findings:
        assert finding.message.endswith((".", "?"))
        assert finding.evidence or finding.depends_on
        assert finding.place.line > 0

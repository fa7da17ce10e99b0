"""Published reports of slow or failing servers: the knob that helped there is named first, and proved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from camshaft.diagnostics.diagnose import Report, choose, trials
from camshaft.diagnostics.report import text

CASES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((Path(__file__).parent / "cases").glob("*.yaml"))
}


@pytest.fixture(scope="module")
def rigs() -> dict[str, Any]:
    """What each case is replayed on, so that its two diagnoses share their replays."""
    return {}


@pytest.fixture(autouse=True)
def shared(rigs: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rig_for(*told: Any) -> Any:
        if name not in rigs:
            rigs[name] = choose.rig_for(*told)
        return rigs[name]

    monkeypatch.setattr(trials, "rig_for", rig_for)


def _examined(examine: Callable[..., Report], case: dict[str, Any], **options: Any) -> Report:
    return examine(case["config"], case.get("observed"), case.get("log"), **options)


@pytest.mark.parametrize("name", CASES)
def test_names_the_knob_that_helped(examine: Callable[..., Report], name: str) -> None:
    case = CASES[name]
    expected = case["expected"]
    report = _examined(examine, case)
    verdict = report.verdict
    assert (verdict.bottleneck, verdict.direction) == (expected["bottleneck"], expected["direction"])
    assert verdict.knob in expected["knobs"]
    assert verdict.after == expected.get("to", verdict.after)
    shown = text.render(report)
    assert str(verdict.knob) in shown.splitlines()[0]
    for mention in expected["mentions"]:
        assert mention.lower() in shown.lower()
    if verdict.bottleneck != "kv_does_not_fit":
        assert report.before is not None
        assert report.after is not None
        assert report.before.result != report.after.result


@pytest.mark.parametrize("name", [name for name in CASES if name != "kv-does-not-fit-at-startup"])
def test_replays_alone_decide_the_same(examine: Callable[..., Report], name: str) -> None:
    """Without any rule that proposes from symptoms, turning every knob and replaying finds the same one."""
    expected = CASES[name]["expected"]
    verdict = _examined(examine, CASES[name], rules=()).verdict
    assert verdict.bottleneck == expected["bottleneck"]
    assert verdict.knob in expected["knobs"]

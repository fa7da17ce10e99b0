"""Predictions beside runs: the comparison itself."""

from __future__ import annotations

import pytest

from camshaft.core.config import load_config
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.results import Result
from camshaft.diagnostics.simulate import Frontend, prepare
from camshaft.diagnostics.simulate.live import FIGURES, LiveRow, check_here
from camshaft.diagnostics.simulate.replay import replay


def test_a_machine_that_does_as_predicted_has_no_error() -> None:
    prepared = prepare(
        load_config({"model": "llama-3.2-1b", "max_model_len": 2048}, purpose="inspect"), load_hardware("l4")
    )
    arrival = {"kind": "closed", "concurrency": 4, "requests": 12}
    load = load_workload({"arrival": arrival, "input_tokens": {"uniform": [50, 900]}, "output_tokens": 24})
    asked: list[str] = []

    def run(policy: str) -> Result:
        from dataclasses import replace

        asked.append(policy)
        return replay(replace(prepared.under(policy).setup(load), frontend=Frontend()), load).result

    rows = check_here(prepared, load, ["static", "continuous"], run, repeats=2)
    assert asked == ["static", "continuous"] * 2
    for row in rows:
        for figure in FIGURES:
            assert row.error(figure) == pytest.approx(0)
            assert row.holds(figure)


def test_errors_are_judged_by_the_spread_where_that_is_larger() -> None:
    row = LiveRow("p", {"itl_p99_ms": 130.0}, {"itl_p99_ms": [80.0, 100.0, 150.0]})
    assert row.error("itl_p99_ms") == pytest.approx(0.3)
    assert row.spread("itl_p99_ms") == pytest.approx(0.35)
    assert row.holds("itl_p99_ms")
    assert not LiveRow("p", {"itl_p99_ms": 130.0}, {"itl_p99_ms": [100.0]}).holds("itl_p99_ms")

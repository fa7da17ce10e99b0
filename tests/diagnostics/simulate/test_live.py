"""Predictions beside runs: the comparison itself."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from rich.console import Console

from camshaft.core.config import load_config
from camshaft.core.execute.base import Capacity
from camshaft.core.schedule.plan import StepPlan, StepResult
from camshaft.core.workload import Workload, load_workload
from camshaft.diagnostics.cost.hardware import Jitter, load_hardware
from camshaft.diagnostics.cost.step import StepCost
from camshaft.diagnostics.results import Result
from camshaft.diagnostics.simulate import Frontend, Prepared, prepare
from camshaft.diagnostics.simulate.executor import Scatter
from camshaft.diagnostics.simulate.live import (
    DRAWS,
    FIGURES,
    LiveRow,
    LiveRun,
    check_here,
    figures,
    machine_speed,
    predict,
)
from camshaft.diagnostics.simulate.render_live import print_live, remarks
from camshaft.diagnostics.simulate.replay import replay

SCATTERED = Jitter(decode=[0.9, 1.0, 1.1, 1.6], prefill=[1.0, 1.0], source="made up")


def prepared(jitter: Jitter | None = None) -> Prepared:
    hardware = msgspec.structs.replace(load_hardware("l4"), jitter=jitter)
    loaded = load_config({"model": "llama-3.2-1b", "max_model_len": 2048}, purpose="inspect")
    return prepare(loaded, hardware)


def load() -> Workload:
    arrival = {"kind": "closed", "concurrency": 4, "requests": 12}
    return load_workload({"arrival": arrival, "input_tokens": {"uniform": [50, 900]}, "output_tokens": 24})


def played(what: Prepared, workload: Workload, seed: int = 0) -> Result:
    return replay(replace(what.setup(workload), frontend=Frontend(), seed=seed), workload).result


def row(policy: str, predicted: float, *measured: float, speed: float | None = None) -> LiveRow:
    runs = [LiveRun(dict.fromkeys(FIGURES, value), 1.0, speed, 0.0) for value in measured]
    return LiveRow(policy, dict.fromkeys(FIGURES, predicted), runs)


def test_a_machine_that_does_as_predicted_has_no_error() -> None:
    what, workload, asked, said = prepared(), load(), [], []

    def run(policy: str) -> tuple[Result, float]:
        asked.append(policy)
        return played(what.under(policy), workload), 1.0

    rows = check_here(what, workload, ["static", "continuous"], run, 2, said.append)
    assert asked == ["static", "continuous"] * 2
    for found in rows:
        for figure in FIGURES:
            assert found.error(figure) == pytest.approx(0)
            assert found.holds(figure)
    assert [line.split(":")[0] for line in said[2:]] == [
        f"run {n} of 2, {policy}" for n in (1, 2) for policy in ("static", "continuous")
    ]
    assert all(row.holds(figure) for row in rows for figure in FIGURES)


def test_errors_are_judged_by_the_spread_where_that_is_larger() -> None:
    found = row("p", 130.0, 80.0, 100.0, 150.0)
    assert found.error("itl_p99_ms") == pytest.approx(0.3)
    assert found.spread("itl_p99_ms") == pytest.approx(0.35)
    assert found.holds("itl_p99_ms")
    assert not row("p", 130.0, 100.0).holds("itl_p99_ms")


def test_a_machine_slower_than_its_sheet_is_told_from_a_wrong_model() -> None:
    found = LiveRow(
        "p",
        {"throughput_output_tokens_per_s": 100.0, "ttft_mean_ms": 10.0, "itl_p99_ms": 10.0},
        [
            LiveRun(
                {"throughput_output_tokens_per_s": 50.0, "ttft_mean_ms": 20.0, "itl_p99_ms": 20.0},
                1,
                0.5,
                0.4,
            )
        ],
    )
    assert not any(found.holds(figure) for figure in FIGURES)
    assert [found.error_at_speed(figure) for figure in FIGURES] == pytest.approx([0, 0, 0])
    told = " ".join(remarks([found]))
    assert "50% of its sheet's speed" in told
    assert "up to 40% of the cores" in told


def test_nothing_is_judged_on_a_machine_that_was_not_quiet() -> None:
    loud = replace(row("static", 130.0), runs=[LiveRun(dict.fromkeys(FIGURES, 100.0), 1.0, None, 0.4)])
    assert set(loud.to_dict()["holds"].values()) == {None}
    told = " ".join(remarks([loud, row("continuous", 100.0, 100.0)]))
    assert "3 of 3 predictions hold." in told
    assert "Not judged: static; the machine was not quiet." in told
    assert "predictions hold" not in " ".join(remarks([loud]))
    console = Console(width=100, record=True, file=io.StringIO())
    print_live(console, [loud])
    text = console.export_text()
    assert text.count("not judged") == 3
    assert "outside" not in text


def test_the_table_marks_every_figure() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    print_live(console, [row("static", 130.0, 100.0), row("continuous", 99.0, 100.0)])
    text = console.export_text()
    assert text.count("outside") == 3
    assert "3 of 6 predictions hold." in text
    assert "-1.0%" in text


def test_a_prediction_is_the_median_over_scatters() -> None:
    what, workload = prepared(SCATTERED), load()
    each = [figures(played(what, workload, seed)) for seed in range(DRAWS)]
    told = predict(what, workload)
    for figure in FIGURES:
        assert told[figure] == pytest.approx(np.median([one[figure] for one in each]))
    assert len({one["throughput_output_tokens_per_s"] for one in each}) == DRAWS


def test_scatter_makes_the_slowest_steps_slower_and_repeats_with_its_seed() -> None:
    arrival = {"kind": "closed", "concurrency": 4, "requests": 4}
    workload = load_workload({"arrival": arrival, "input_tokens": 50, "output_tokens": 200})
    calm, rough = played(prepared(), workload), played(prepared(SCATTERED), workload)
    assert calm.itl_ms
    assert rough.itl_ms
    assert rough.itl_ms.p99 > 1.2 * calm.itl_ms.p99
    assert rough == played(prepared(SCATTERED), workload)


def test_draws_follow_the_quantiles() -> None:
    scatter = Scatter(Jitter(decode=[0.5, 1.0, 1.5], prefill=[2.0], source="made up"))
    drawn = [scatter.factor(prefill=False) for _ in range(4000)]
    assert min(drawn) == 0.5
    assert max(drawn) == 1.5
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.02)
    assert scatter.factor(prefill=True) == 2.0


class Slow:
    """An executor whose steps take `factor` times what a cost model says."""

    def __init__(self, cost: StepCost, factor: float) -> None:
        self.cost, self.factor, self.plans = cost, factor, []

    def open(self) -> Capacity:
        raise AssertionError

    def launch(self, plan: StepPlan) -> StepPlan:
        self.plans.append(plan)
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        n = handle.num_decodes
        drawn = int(handle.samples.sum())
        told = self.cost.step(handle.starts[:n] + 1, handle.num_tokens[n:], handle.starts[n:], drawn)
        rows = handle.rows[handle.samples]
        ms = self.factor * (told.total - told.host)
        return StepResult(handle.step, rows, np.zeros(len(rows), dtype=np.int32), ms)

    def close(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("capacity", [Capacity(500, 16, 2048, 8, 1000), Capacity(40, 16, 128, 2, 1000)])
def test_the_machines_speed_is_taken_from_a_few_steps(capacity: Capacity) -> None:
    cost = prepared().cost
    assert isinstance(cost, StepCost)
    machine = Slow(cost, 1.25)
    assert machine_speed(machine, capacity, cost) == pytest.approx(0.8)
    assert max(int(plan.table_blocks.max(initial=0)) for plan in machine.plans) < capacity.num_blocks
    assert len(machine.plans[-1].removed)

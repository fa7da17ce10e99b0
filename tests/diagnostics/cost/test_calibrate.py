"""Calibration finds again the machine that an executor pretends to be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from camshaft.core.arithmetic.model_sheets import shape_named
from camshaft.core.errors import CapacityError, ConfigError
from camshaft.core.execute.base import Capacity
from camshaft.core.schedule.plan import StepPlan, StepResult
from camshaft.diagnostics.cost.calibrate import cpu_settings, machine_sheet, measure_machine, with_trial
from camshaft.diagnostics.cost.fit import write_sheet
from camshaft.diagnostics.cost.hardware import HardwareSheet, load_hardware
from camshaft.diagnostics.cost.machine import Machine, curves, fit_steps
from camshaft.diagnostics.cost.measure import Room, Timings, measure, points
from camshaft.diagnostics.cost.neighbours import Neighbours
from camshaft.diagnostics.cost.probe import Point
from camshaft.diagnostics.cost.step import StepCost
from camshaft.diagnostics.cost.trial import ServedStep, host_us, jitter, small_load

SHAPE = shape_named("smollm2-135m")
CAPACITY = Capacity(1456, 16, 4096, 32, SHAPE.vocab_size)
MACHINE = Machine(bandwidth=20e9, flops=100e9)
NOBODY = Neighbours(
    Path("no such file")
)  # on a machine whose load nobody sees, every step counts as undisturbed


def truth() -> StepCost:
    """The machine pretended: products at 60 % of the roofline, the head at 30 %, attention at its own shares."""
    gemm = {
        "floor_us": 0.0,
        "tokens": [1],
        "n": [3072, SHAPE.vocab_size],
        "k": [1],
        "efficiency_percent": [[[60.0], [30.0]]],
        "source": "made up",
    }
    pretended = {
        "gemm": {"float32": gemm},
        "decode_attention": {
            "bfloat16": _attention(bandwidth_share=0.5, us_per_kv_head=0.0, us_per_head=0.0)
        },
        "prefill_attention": {"bfloat16": _attention(compute_share=0.4, us_per_mega_element=0.0)},
    }
    sheet = machine_sheet("pretended", 2**34, MACHINE, pretended, (0.0, 0.0), "float32")
    return StepCost(SHAPE, msgspec.convert(sheet, HardwareSheet), cpu_settings("float32"))


def _attention(**coefficients: float) -> dict:
    return {"floor_us": 0.0, "mean_error_percent": 0.0, "source": "made up", **coefficients}


@dataclass
class Pretender:
    """An executor whose steps take what `truth` says, and every eleventh one three times as long."""

    cost: StepCost = field(default_factory=truth)
    plans: list[StepPlan] = field(default_factory=list)

    def open(self) -> Capacity:
        return CAPACITY

    def launch(self, plan: StepPlan) -> StepPlan:
        assert plan.table_blocks.max(initial=0) < CAPACITY.num_blocks
        assert len(set(plan.rows.tolist())) == len(plan.rows)
        self.plans.append(plan)
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        n = handle.num_decodes
        time = self.cost.step(
            handle.starts[:n] + 1, handle.num_tokens[n:], handle.starts[n:], int(handle.samples.sum())
        )
        rows = handle.rows[handle.samples]
        hiccup = 3.0 if len(self.plans) % 11 == 0 else 1.0
        return StepResult(handle.step, rows, np.zeros(len(rows), dtype=np.int32), hiccup * time.total)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def found() -> StepCost:
    """What a calibration makes of the pretender."""
    timings = measure(Pretender(), CAPACITY, seconds=0.0, neighbours=NOBODY)
    measured = curves(fit_steps(timings.medians()), MACHINE, SHAPE, "float32")
    sheet = machine_sheet("here", 2**34, MACHINE, measured, (0.0, 0.0), "float32")
    return StepCost(SHAPE, msgspec.convert(sheet, HardwareSheet), cpu_settings("float32"))


@pytest.mark.parametrize(
    "point",
    [
        Point(decodes=1, context=200),
        Point(decodes=8, context=700),
        Point(decodes=32, context=350),
        Point(chunks=1, tokens=64, ends=True),
        Point(chunks=1, tokens=256),
        Point(chunks=1, tokens=128, start=1500),
        Point(chunks=8, tokens=400, ends=True),
        Point(5, 300, 1, 251, 512),
        Point(7, 600, 1, 57, 0, ends=True),
    ],
    ids=Point.describe,
)
def test_steps_never_timed_are_predicted(found: StepCost, point: Point) -> None:
    real = truth().step(*point.arrays(), point.samples).total
    assert found.step(*point.arrays(), point.samples).total == pytest.approx(real, rel=0.03)


def test_head_and_attention_are_told_apart_from_the_products(found: StepCost) -> None:
    real, seen = truth(), found
    for part in ("head", "decode_attention", "gemm"):
        expected = getattr(real.decode_step(8, 900), part)
        assert getattr(seen.decode_step(8, 900), part) == pytest.approx(expected, rel=0.05)
    expected = real.prefill_step(256, 3000).prefill_attention
    assert seen.prefill_step(256, 3000).prefill_attention == pytest.approx(expected, rel=0.05)


def test_every_kind_of_step_is_timed_in_each_round_and_rows_are_given_back() -> None:
    machine = Pretender()
    timings = measure(machine, CAPACITY, seconds=0.0, neighbours=NOBODY)
    assert timings.rounds == 3
    everything = {**timings.by_point, **timings.disturbed}
    for point in points(Room.of(CAPACITY)):
        taken = len(timings.by_point.get(point, [])) + len(timings.disturbed.get(point, []))
        assert taken >= 3, point
    assert max(p.decodes for p in everything) == CAPACITY.max_num_seqs
    assert any(p.decodes and p.chunks for p in everything)
    assert machine.plans[-1].removed.tolist() == list(range(CAPACITY.max_num_seqs))


def test_disturbed_steps_count_only_where_there_are_no_others() -> None:
    timings, point, other = Timings(), Point(decodes=1, context=16), Point(decodes=2, context=16)
    for ms in (10.0, 11.0, 12.0):
        timings.add(point, ms)
    for ms in (30.0, 30.0, 30.0, 30.0):
        timings.add(point, ms, quiet=False)
    for ms in (40.0, 20.0):
        timings.add(other, ms, quiet=False)
    assert timings.medians() == {point: 11.0, other: 20.0}
    assert timings.fewest([point]) == 3
    assert timings.fewest([point, other]) == 0
    assert timings.disturbed_share() == pytest.approx(6 / 9)
    assert timings.spread() == pytest.approx(0.5 / 11)


def test_steps_that_were_all_disturbed_vary_too() -> None:
    timings = Timings()
    for ms in (30.0, 40.0, 50.0):
        timings.add(Point(decodes=1, context=16), ms, quiet=False)
    assert timings.spread() == pytest.approx(5 / 40)


def test_a_cache_too_small_to_measure_is_refused() -> None:
    with pytest.raises(CapacityError, match="too few"):
        measure(Pretender(), Capacity(16, 16, 4096, 32, SHAPE.vocab_size))


def test_a_mixture_of_experts_is_refused() -> None:
    fitted = fit_steps(measure(Pretender(), CAPACITY, seconds=0.0, neighbours=NOBODY).medians())
    with pytest.raises(ConfigError, match="dense model"):
        curves(fitted, MACHINE, shape_named("mixtral-8x7b"), "float32")


def served(cost: StepCost, decodes: int, factor: float, at_s: float) -> ServedStep:
    step = ServedStep(np.full(decodes, 100), np.empty(0, int), np.empty(0, int), decodes, 0, at_s, at_s)
    return replace(step, collected_s=at_s + factor * step.predicted_ms(cost) / 1e3)


def test_a_sheet_tells_the_error_and_the_scatter_of_a_served_load(tmp_path: Path) -> None:
    cost = truth()
    factors = np.tile(np.linspace(0.9, 1.1, 101), 6)
    steps = [served(cost, 4, 1.2 * factor, 0.0) for factor in factors]
    none = np.empty(0, int)
    chunk = ServedStep(none, np.array([64]), np.array([0]), 1, 0, 0.0, 0.0)
    steps += [replace(chunk, collected_s=chunk.predicted_ms(cost) / 1e3)] * 18
    sheet = with_trial(msgspec.to_builtins(cost.hardware), SHAPE, "float32", steps)
    assert sheet["error_band"]["tpot_percent"] == pytest.approx(100 / 6, abs=1.0)
    assert sheet["error_band"]["ttft_percent"] == 3.0
    assert sheet["jitter"]["decode"][0] == pytest.approx(0.9, abs=0.01)
    assert sheet["jitter"]["decode"][-1] == pytest.approx(1.1, abs=0.01)
    path = tmp_path / "machine.yaml"
    write_sheet(path, sheet, "engine calibrate")
    assert yaml.safe_load(path.read_text())["device_type"] == "cpu"
    read = load_hardware(str(path))
    assert read.jitter is not None
    assert read.jitter.prefill == [1.0] * 50


def test_a_slow_moment_is_not_the_scatter_of_every_run() -> None:
    calm = np.tile([0.98, 1.0, 1.02, 1.0, 1.1], 40)
    slow = calm.copy()
    slow[40:70] *= 1.8
    told, disturbed = jitter(calm, calm), jitter(slow, slow)
    assert told is not None
    assert disturbed is not None
    assert max(told["decode"]) == pytest.approx(1.1, abs=0.01)
    assert disturbed["decode"] == pytest.approx(told["decode"], abs=0.05)


def test_too_few_steps_show_no_scatter() -> None:
    assert jitter(np.ones(100), np.ones(17)) is None
    assert jitter(np.ones(100), np.ones(18)) is not None


def test_the_hosts_time_lies_between_steps() -> None:
    cost = truth()
    first = served(cost, 2, 1.0, 0.0)
    second = served(cost, 2, 1.0, first.collected_s + 300e-6)
    assert host_us([first, second]) == pytest.approx(300)
    assert host_us([first]) == 0.0


def test_a_small_load_fits_the_executor() -> None:
    for capacity in (CAPACITY, Capacity(64, 16, 128, 4, 500)):
        load = small_load(capacity)
        longest = max(r.input_tokens + r.output_tokens for r in load.requests())
        assert longest < capacity.max_model_len
        assert longest * min(8, capacity.max_num_seqs) <= capacity.num_blocks * capacity.block_size


def test_neighbours_are_what_is_busy_beyond_this_process(tmp_path: Path) -> None:
    path = tmp_path / "stat"

    def say(user: int, idle: int) -> None:
        path.write_text(f"cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")

    say(1000, 1000)
    neighbours = Neighbours(path)
    assert neighbours.share() is None
    say(1000 + 6000, 1000 + 2000)
    assert neighbours.share() == pytest.approx(0.75, abs=0.02)
    say(7000, 3000 + 1000)
    assert neighbours.share() == 0.0
    path.unlink()
    assert neighbours.share() is None


def test_the_machine_has_a_speed() -> None:
    machine = measure_machine(mebibytes=8, side=128)
    assert 1e7 < machine.bandwidth < 1e14
    assert 1e6 < machine.flops < 1e16

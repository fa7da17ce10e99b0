"""Calibration finds again the machine that an executor pretends to be."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import yaml

from camshaft.core.errors import CapacityError
from camshaft.core.execute.base import Capacity
from camshaft.core.schedule.plan import StepPlan, StepResult
from camshaft.diagnostics.cost.calibrate import (
    Machine,
    fit_machine,
    machine_sheet,
    measure_machine,
    measure_steps,
)
from camshaft.diagnostics.cost.fit import write_sheet
from camshaft.diagnostics.cost.hardware import Hardware, load_hardware
from camshaft.diagnostics.cost.models import load_model
from camshaft.diagnostics.cost.step import CostSettings, StepCost

SHAPE = load_model("smollm2-135m")
CAPACITY = Capacity(1456, 16, 4096, 32, SHAPE.vocab_size)
MACHINE = Machine(bandwidth=20e9, flops=100e9)


def truth() -> StepCost:
    """The machine pretended: 60 % of its roofline everywhere, cache read at half the bandwidth."""
    curves = {
        "gemm": {
            "float32": {
                "floor_us": 0.0,
                "tokens": [1],
                "n": [1],
                "k": [1],
                "efficiency_percent": [[[60.0]]],
                "source": "made up",
            }
        },
        "decode_attention": {
            "bfloat16": _attention(bandwidth_share=0.5, us_per_kv_head=0.0, us_per_head=0.0)
        },
        "prefill_attention": {"bfloat16": _attention(compute_share=0.4, us_per_mega_element=0.0)},
    }
    sheet = msgspec.convert(
        machine_sheet("pretended", 2**34, MACHINE, curves, (0.0, 0.0), "float32"), Hardware
    )
    return StepCost(SHAPE, sheet, CostSettings(dtype="float32", max_graph_size=0, sorted_sampling=False))


def _attention(**coefficients: float) -> dict:
    return {"floor_us": 0.0, "mean_error_percent": 0.0, "source": "made up", **coefficients}


class Pretender:
    """An executor whose steps take what `truth` says; refuses tables beyond its blocks."""

    def __init__(self) -> None:
        self.cost = truth()

    def open(self) -> Capacity:
        return CAPACITY

    def launch(self, plan: StepPlan) -> StepPlan:
        assert plan.table_blocks.max(initial=0) < CAPACITY.num_blocks
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        n = handle.num_decodes
        time = self.cost.step(
            handle.starts[:n] + 1, handle.num_tokens[n:], handle.starts[n:], int(handle.samples.sum())
        )
        rows = handle.rows[handle.samples]
        return StepResult(handle.step, rows, np.zeros(len(rows), dtype=np.int32), time.total)

    def close(self) -> None:
        pass


def test_steps_are_predicted_as_they_were_measured(tmp_path) -> None:
    timings = measure_steps(Pretender(), CAPACITY)
    curves = fit_machine(timings, MACHINE, SHAPE, "float32")
    path = tmp_path / "machine.yaml"
    write_sheet(
        path, machine_sheet("here", 2**34, MACHINE, curves, (0.0, 0.0), "float32"), "engine calibrate"
    )
    assert yaml.safe_load(path.read_text())["device_type"] == "cpu"
    found = StepCost(
        SHAPE,
        load_hardware(str(path)),
        CostSettings(dtype="float32", max_graph_size=0, sorted_sampling=False),
    )
    real = truth()
    for sequences, context in ((1, 200), (8, 300), (32, 350)):
        assert found.decode_step(sequences, context).total == pytest.approx(
            real.decode_step(sequences, context).total, rel=0.06
        )
    for tokens, start in ((64, 0), (256, 0), (128, 200)):
        assert found.prefill_step(tokens, start).total == pytest.approx(
            real.prefill_step(tokens, start).total, rel=0.06
        )


def test_a_cache_too_small_to_measure_is_refused() -> None:
    with pytest.raises(CapacityError, match="too few"):
        measure_steps(Pretender(), Capacity(32, 16, 4096, 32, SHAPE.vocab_size))


def test_the_machine_has_a_speed() -> None:
    machine = measure_machine(mebibytes=8, side=128)
    assert 1e7 < machine.bandwidth < 1e14
    assert 1e6 < machine.flops < 1e16

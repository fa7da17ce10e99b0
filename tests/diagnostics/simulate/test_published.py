"""Predictions against real servers: published points on H100s and one recorded run on an RTX PRO 6000."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from camshaft.core.arithmetic.model_sheets import shape_named
from camshaft.core.config import load_config
from camshaft.core.errors import EvidenceError
from camshaft.core.workload import load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.simulate import EngineKind, prepare
from camshaft.diagnostics.simulate.published import (
    ASSUMED_VERSION,
    Compared,
    Errors,
    Point,
    compare,
    errors,
    read_points,
)
from camshaft.diagnostics.simulate.render import print_compared

DATA = Path(__file__).parents[1] / "data"


def points(name: str = "h100_vllm_dense.csv") -> list[Point]:
    with (DATA / name).open(newline="") as file:
        return [
            Point(
                hardware="h100_sxm",
                model=row["model"],
                version=row["version"] or ASSUMED_VERSION,
                precision=row["precision"],
                tensor_parallel_size=int(row["tp"]),
                expert_parallel=row.get("expert_parallel") == "1",
                input_tokens=int(row["input_tokens"]),
                output_tokens=int(row["output_tokens"]),
                concurrency=int(row["concurrency"]),
                ttft_ms=float(row["ttft_ms"]),
                tpot_ms=float(row["tpot_ms"]),
                varied="Qwen" not in row["model"],
            )
            for row in csv.DictReader(file)
        ]


def chosen() -> list[Point]:
    """The points that are quick to replay, of both models and parallel sizes 2, 4 and 8."""
    return [p for p in points() if p.output_tokens * p.concurrency <= 4_200 and not p.saturated]


@pytest.mark.slow
def test_dense_points_are_predicted_within_the_stated_error() -> None:
    compared = [compare(point) for point in chosen()]
    found = errors(compared)
    assert found.points == len(compared) >= 10
    assert found.tpot_mean is not None
    assert found.ttft_mean is not None
    assert found.unpredicted == 0
    assert found.tpot_mean <= 0.08
    assert found.ttft_mean <= 0.20
    band = load_hardware("h100").error_band
    assert found.tpot_mean <= band.tpot_percent / 100
    assert found.ttft_mean <= band.ttft_percent / 100


def test_compared_points_keep_one_line_each_in_a_narrow_terminal() -> None:
    chosen = list({p.model: p for p in points() if p.concurrency <= 8}.values())
    rows = [compare(point) for point in (*chosen, *chosen)]
    console = Console(width=80, record=True, file=StringIO())
    print_compared(console, rows, errors(rows))
    lines = [line for line in console.export_text().splitlines() if " x" in line]
    assert [line.split()[0] for line in lines] == [
        f"{p.input_tokens}/{p.output_tokens}" for p in chosen for _ in range(2)
    ]
    assert all(len(line.split()) == 8 for line in lines)


@pytest.mark.slow
def test_mixtures_of_experts_are_predicted_within_the_stated_error() -> None:
    """Two models, with experts cut and with whole ones on each device, over two, four and eight devices."""
    chosen = [p for p in points("h100_vllm_moe.csv") if p.concurrency <= 16 and p.output_tokens <= 1024]
    found = errors([compare(point) for point in chosen])
    band = load_hardware("h100").error_band
    assert found.points == len(chosen) >= 15
    assert found.tpot_mean is not None
    assert found.ttft_mean is not None
    assert found.tpot_mean <= band.moe_tpot_percent / 100
    assert found.ttft_mean <= band.moe_ttft_percent / 100


@pytest.mark.slow
def test_an_exhausted_cache_is_predicted_within_a_factor_of_1_5() -> None:
    """70B in FP8 on two H100, 8k in and 1k out, 64 at once: half of them wait (59.2 s, 52.4 ms measured)."""
    point = Point(
        hardware="h100_sxm",
        model="meta-llama/Llama-3.1-70B",
        version=ASSUMED_VERSION,
        precision="fp8",
        tensor_parallel_size=2,
        expert_parallel=False,
        input_tokens=8192,
        output_tokens=1024,
        concurrency=64,
        ttft_ms=59175,
        tpot_ms=52.4,
        varied=True,
    )
    found = compare(point)
    assert abs(np.log(1 + found.ttft_error)) <= np.log(1.5)
    assert abs(found.tpot_error) <= 0.10
    assert found.result is not None
    assert found.result.saturated


def test_a_recorded_run_of_300_requests_is_predicted_within_a_tenth(tmp_path: Path) -> None:
    """vLLM 0.19 with Llama 3.1 8B on one RTX PRO 6000: mean and p99 of both latencies."""
    with (DATA / "rtx_pro_6000_vllm_300.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    trace = tmp_path / "run.jsonl"
    lines = [
        f'{{"timestamp": {float(r["arrival_s"]) * 1e3}, "input_length": {r["input_tokens"]}, '
        f'"output_length": {r["output_tokens"]}, "hash_ids": []}}\n'
        for r in rows
    ]
    trace.write_text("".join(lines))
    chosen = {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    prepared = prepare(
        load_config(chosen, purpose="inspect"),
        load_hardware("rtx pro 6000"),
        shape_named("llama-3.1-8b"),
        engine=EngineKind("vllm", "0.19.0"),
    )
    result = prepared.replay(load_workload({"arrival": {"kind": "trace", "file": str(trace)}})).result
    for name in ("ttft_ms", "tpot_ms"):
        measured = np.array([float(row[name]) for row in rows])
        predicted = getattr(result, name)
        assert predicted.mean == pytest.approx(measured.mean(), rel=0.10)
        assert predicted.p99 == pytest.approx(np.percentile(measured, 99), rel=0.10)


def test_a_table_of_points_is_read_by_its_published_columns(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text(
        "system,backend,backend_version,model_path,precision,tp_size,attention_dp_size,moe_ep_size,isl,osl,batch_size,conc,silicon_ttft_ms,silicon_tpot_ms\n"
        "h200_sxm,vllm,0.12.0,Qwen/Qwen3-32B,,2.0,,1.0,1024,128,8.0,8.0,154.2,18.0\n"
        "h200_sxm,vllm,0.12.0,Qwen/Qwen3-32B,,2.0,,1.0,1024,128,8.0,8.0,154.2,18.0\n"
        "h200_sxm,vllm,0.12.0,Qwen/Qwen3-32B,fp8,2.0,,0.0,4000,1000,48.0,,184.6,11.6\n"
        "h200_sxm,trtllm,1.0,Qwen/Qwen3-32B,,2.0,,1.0,1024,128,8.0,8.0,154.2,18.0\n"
    )
    (point,) = read_points(file)
    assert (point.hardware, point.concurrency, point.varied) == ("h200_sxm", 8, False)
    found = compare(point)
    assert found.result is not None
    assert found.result.requests == 80
    with pytest.raises(EvidenceError):
        read_points(tmp_path / "absent.csv")
    with pytest.raises(EvidenceError, match=r"no row has backend sglang.*silicon_ttft_ms"):
        read_points(file, "sglang")


def test_nothing_is_averaged_where_there_are_no_points() -> None:
    assert errors([]) == Errors(0, 0, None, None, 0, None)


def test_what_cannot_start_is_told_and_not_guessed() -> None:
    point = Point(
        hardware="rtx 4090",
        model="meta-llama/Llama-3.1-70B",
        version="0.18.0",
        precision="bf16",
        tensor_parallel_size=1,
        expert_parallel=False,
        input_tokens=100,
        output_tokens=10,
        concurrency=1,
        ttft_ms=100,
        tpot_ms=10,
        varied=False,
    )
    found = compare(point)
    assert isinstance(found, Compared)
    assert found.result is None
    assert "does not fit" in found.reason
    assert errors([found]).unpredicted == 1

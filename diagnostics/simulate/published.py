"""Lays predictions beside published serving points: the error of a sheet, found again by one command.

The table has the columns of NVIDIA AIConfigurator's collected serving points. Two harnesses filled it.
Points that state `attention_dp_size` varied lengths uniformly between 0.8 and 1.0 of the nominal and let a
step take 8,192 tokens (as published). For the others no source states a protocol; fixed lengths and a step of
input + 1,500 + concurrency tokens, which is what AIConfigurator itself generates, is inferred from the rows.
Both ran a closed loop of 10 x concurrency requests with as many slots as clients, without prefix caching, at a
utilisation of 0.9.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ...core.arithmetic.model_sheets import shape_named
from ...core.config import load_config
from ...core.errors import CamshaftError, EvidenceError
from ...core.workload import load_workload
from ..cost.hardware import load_hardware
from ..results import SATURATED_TTFT_MS, Distribution, Result
from .engines import EngineKind
from .prepare import prepare

ASSUMED_VERSION = "0.19.0"  # of points that state none


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured point. `varied`: lengths between 0.8 and 1.0 of the nominal."""

    hardware: str
    model: str
    version: str
    precision: str
    tensor_parallel_size: int
    expert_parallel: bool
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    varied: bool

    @property
    def saturated(self) -> bool:
        return self.ttft_ms > SATURATED_TTFT_MS

    def configuration(self) -> dict[str, Any]:
        """The configuration of the measured engine."""
        chosen: dict[str, Any] = {
            "model": self.model,
            "tensor_parallel_size": self.tensor_parallel_size,
            "max_model_len": max(10240, self.input_tokens + self.output_tokens + 1024),
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": False,
            "enable_expert_parallel": self.expert_parallel,
            "max_num_seqs": self.concurrency,
            "max_num_batched_tokens": 8192 if self.varied else self.input_tokens + 1500 + self.concurrency,
        }
        if self.precision in ("fp8", "int8", "int4") and shape_named(self.model).quantization is None:
            chosen["quantization"] = self.precision
        return chosen

    def workload(self) -> dict[str, Any]:
        """The load of the measurement."""
        arrival = {"kind": "closed", "concurrency": self.concurrency, "requests": 10 * self.concurrency}
        return {
            "arrival": arrival,
            "input_tokens": self._length(self.input_tokens),
            "output_tokens": self._length(self.output_tokens),
        }

    def _length(self, nominal: int) -> Any:
        return {"uniform": [max(1, int(nominal * 0.8)), nominal]} if self.varied else nominal


@dataclass(frozen=True, slots=True)
class Compared:
    """A point, what was predicted for it, and the relative errors; or why nothing was."""

    point: Point
    result: Result | None
    reason: str = ""

    @property
    def ttft_error(self) -> float:
        return _error(self.result.ttft_ms if self.result else None, self.point.ttft_ms)

    @property
    def tpot_error(self) -> float:
        return _error(self.result.tpot_ms if self.result else None, self.point.tpot_ms)


def _error(predicted: Distribution | None, measured_ms: float) -> float:
    return predicted.mean / measured_ms - 1 if predicted else float("nan")


COLUMNS = (
    "system", "backend", "backend_version", "model_path", "precision", "tp_size", "attention_dp_size", "moe_ep_size",
    "isl", "osl", "conc", "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip


def read_points(path: Path, backend: str = "vllm") -> list[Point]:
    """The points of one backend; those without a stated concurrency are left out, and doubles.

    Raises EvidenceError for a file that is no such table, or has no such point.
    """
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("backend") == backend]
        points = [_point(row) for row in rows if row["conc"]]
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}") from error
    except (KeyError, ValueError) as error:
        raise EvidenceError(f"{path}: not a table of serving points: {error}") from error
    if not points:
        raise EvidenceError(
            f"{path}: no row has backend {backend} and a concurrency; the columns read are {', '.join(COLUMNS)}"
        )
    return list(dict.fromkeys(points))


def _point(row: Mapping[str, str]) -> Point:
    return Point(
        hardware=row["system"],
        model=row["model_path"],
        version=row["backend_version"] or ASSUMED_VERSION,
        precision=row["precision"] or "bf16",
        tensor_parallel_size=int(float(row["tp_size"])),
        expert_parallel=float(row["moe_ep_size"] or 1) > 1,
        input_tokens=int(row["isl"]),
        output_tokens=int(row["osl"]),
        concurrency=int(float(row["conc"])),
        ttft_ms=float(row["silicon_ttft_ms"]),
        tpot_ms=float(row["silicon_tpot_ms"]),
        varied=bool(row["attention_dp_size"]),
    )


def compare(point: Point) -> Compared:
    """Predicts one point; a configuration that cannot start by arithmetic is told, not guessed."""
    try:
        prepared = prepare(
            load_config(point.configuration(), purpose="inspect"),
            load_hardware(point.hardware),
            shape_named(point.model),
            engine=EngineKind("vllm", point.version),
        )
        return Compared(point, prepared.replay(load_workload(point.workload())).result)
    except CamshaftError as error:
        return Compared(point, None, str(error))


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute relative errors over unsaturated points, and the worst factor over saturated ones; None for none."""

    points: int
    unpredicted: int
    tpot_mean: float | None
    ttft_mean: float | None
    saturated_points: int
    saturated_worst_factor: float | None


def errors(compared: Iterable[Compared]) -> Errors:
    """Summarises comparisons."""
    rows = list(compared)
    told = [row for row in rows if row.result]
    calm = [row for row in told if not row.point.saturated]
    late = [1 + row.ttft_error for row in told if row.point.saturated]
    return Errors(
        points=len(calm),
        unpredicted=len(rows) - len(told),
        tpot_mean=fmean(abs(r.tpot_error) for r in calm) if calm else None,
        ttft_mean=fmean(abs(r.ttft_error) for r in calm) if calm else None,
        saturated_points=len(late),
        saturated_worst_factor=max((max(f, 1 / max(f, 1e-9)) for f in late), default=None),
    )

"""Condenses tables of measured kernel times into a hardware sheet's curves.

    python -m camshaft.diagnostics.cost.fit TABLES SHEET

TABLES is a folder of `gemm.csv`, `context_attention.csv`, `generation_attention.csv` and
`allreduce.csv` with the columns of NVIDIA AIConfigurator's published tables (latency in ms); SHEET is
the YAML whose curves are replaced. Rows faster than the memory allows were served from a cache and are
left out. The same functions fit what `engine calibrate` measures.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...core.errors import EvidenceError

Row = dict[str, str]

# Pairs such as 128 and 129 keep the step that one token more costs at the edge of a tile.
TOKENS = [1, 16, 32, 64, 65, 128, 129, 192, 256, 257, 512, 513, 1024, 2048, 4096, 8192, 16384]
SIDES = [512, 1024, 2048, 4096, 8192, 16384, 65536]
ELEMENT = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0, "int8": 1.0}


def gemm_curve(rows: Iterable[Row], dtype: str, bandwidth: float, peak: float) -> dict[str, Any]:
    """The efficiency grid of one type: `bandwidth` in bytes/s, `peak` in FLOP/s.

    Each node is the weighted geometric mean of the efficiencies measured at its number of tokens, with
    weights that fall off over a third of an octave in n and k.
    """
    m, n, k, us = _columns(rows, dtype)
    size = ELEMENT[dtype]
    floor = 0.8 * float(np.percentile(us, 0.5))
    moved = (m * k + n * k) * size + m * n * 2
    roof = np.maximum(moved / bandwidth, 2 * m * n * k / peak) * 1e6
    share = roof / np.maximum(us - floor, 0.05 * us)
    bound = moved / bandwidth > 2 * m * n * k / peak
    honest = ~(bound & (moved / bandwidth * 1e6 > us * 0.92))
    m, n, k, share = (m[honest], np.log2(n[honest]), np.log2(k[honest]), np.log(share[honest]))
    grid = []
    for tokens in TOKENS:
        here = m == tokens
        plane = []
        for side_n in SIDES:
            line = []
            for side_k in SIDES[:-1]:
                distance = ((n - np.log2(side_n)) ** 2 + (k - np.log2(side_k)) ** 2) / 0.33**2
                weight = here * np.exp(-distance / 2)
                if weight.sum() < 1e-9:
                    raise EvidenceError(f"no {dtype} product near {tokens} x {side_n} x {side_k}")
                value = float(np.exp((weight * share).sum() / weight.sum()))
                line.append(
                    round(min(99.0, 100 * value), 1) if value < 0.1 else round(min(99.0, 100 * value))
                )
            plane.append(line)
        grid.append(plane)
    return {
        "floor_us": round(floor, 2),
        "tokens": TOKENS,
        "n": SIDES,
        "k": SIDES[:-1],
        "efficiency_percent": grid,
    }


def _columns(rows: Iterable[Row], dtype: str) -> tuple[np.ndarray, ...]:
    kept = [r for r in rows if r["gemm_dtype"] == dtype]
    if not kept:
        raise EvidenceError(f"no rows of {dtype}")
    m, n, k = (np.array([float(r[c]) for r in kept]) for c in ("m", "n", "k"))
    return m, n, k, np.array([float(r["latency"]) * 1e3 for r in kept])


def decode_attention(
    rows: Iterable[Row], kv_dtype: str, bandwidth: float, l2_bytes: float, head_dim: int = 128
) -> dict[str, Any]:
    """The coefficients of `DecodeAttention`, by non-negative least squares on relative error.

    Caches between 2 MB and 1.2 times the L2 are left out: repeated runs find them there, a real step
    does not.
    """
    terms, times = [], []
    for r in rows:
        if r["kv_cache_dtype"] != kv_dtype or int(r["head_dim"]) != head_dim:
            continue
        batch, heads, kv = (int(r[c]) for c in ("batch_size", "num_heads", "num_key_value_heads"))
        moved = batch * (int(r["step"]) + 1) * kv * head_dim * 2 * ELEMENT[kv_dtype]
        if moved < 2e6 or moved > 1.2 * l2_bytes:
            terms.append([1.0, batch * kv, batch * heads, moved / bandwidth * 1e6])
            times.append(float(r["latency"]) * 1e3)
    found, error = relative_nnls(np.array(terms), np.array(times))
    return {
        "floor_us": round(found[0], 2),
        "us_per_kv_head": round(found[1], 5),
        "us_per_head": round(found[2], 6),
        "bandwidth_share": round(min(1.0, 1 / found[3]), 3),
        "mean_error_percent": round(100 * error, 1),
    }


def prefill_attention(rows: Iterable[Row], kv_dtype: str, peak: float) -> dict[str, Any]:
    """The coefficients of `PrefillAttention`, fitted the same way to prompts of 64 tokens and more."""
    terms, times = [], []
    for r in rows:
        tokens = int(r["isl"])
        if r["kv_cache_dtype"] != kv_dtype or tokens < 64:
            continue
        batch, heads, size = (int(r[c]) for c in ("batch_size", "num_heads", "head_dim"))
        width = batch * heads * size
        terms.append([1.0, tokens * width / 1e6, width * tokens * (tokens + 1) * 2 / peak * 1e6])
        times.append(float(r["latency"]) * 1e3)
    found, error = relative_nnls(np.array(terms), np.array(times))
    return {
        "floor_us": round(found[0], 2),
        "us_per_mega_element": round(found[1], 3),
        "compute_share": round(min(1.0, 1 / found[2]), 3),
        "mean_error_percent": round(100 * error, 1),
    }


def all_reduce(rows: Iterable[Row], num_gpus: int) -> dict[str, Any]:
    """Every second point of the captured-graph curve: message sizes in bytes and microseconds."""
    kept = [r for r in rows if int(r["num_gpus"]) == num_gpus and r["backend"].endswith("graph")]
    points = sorted((int(r["message_size"]) * 2, float(r["latency"]) * 1e3) for r in kept)
    chosen = [*points[4:-1:2], points[-1]]
    return {"bytes": [size for size, _ in chosen], "us": [round(us, 1) for _, us in chosen]}


def relative_nnls(terms: np.ndarray, times: np.ndarray) -> tuple[list[float], float]:
    """Non-negative coefficients that minimise the relative error, and its mean."""
    if not len(times):
        raise EvidenceError("no rows to fit")
    kept = list(range(terms.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(terms[:, kept] / times[:, None], np.ones(len(times)), rcond=None)
        if (found >= 0).all() or len(kept) == 1:
            break
        kept.pop(int(np.argmin(found)))
    full = np.zeros(terms.shape[1])
    full[kept] = np.maximum(found, 1e-9)
    return [float(value) for value in full], float(np.mean(np.abs(terms @ full / times - 1)))


def fit_sheet(tables: Path, sheet: dict[str, Any], source: str) -> dict[str, Any]:
    """`sheet` with its curves fitted to the tables in the folder. Raises EvidenceError."""
    bandwidth = sheet["memory_bandwidth_gb_s"] * 1e9
    peaks = {dtype: tflops * 1e12 for dtype, tflops in sheet["compute_tflops"].items()}
    gemm = _table(tables / "gemm.csv")
    decode, prefill = _table(tables / "generation_attention.csv"), _table(tables / "context_attention.csv")
    l2 = sheet["l2_mib"] * 2**20
    said = {"source": source}
    fitted = {
        "gemm": {t: gemm_curve(gemm, t, bandwidth, peaks[t]) | said for t in ("bfloat16", "fp8")},
        "decode_attention": {
            t: decode_attention(decode, t, bandwidth, l2) | said for t in ("bfloat16", "fp8")
        },
        "prefill_attention": {
            t: prefill_attention(prefill, t, peaks["bfloat16"]) | said for t in ("bfloat16", "fp8")
        },
    }
    if (tables / "allreduce.csv").exists():
        rows = _table(tables / "allreduce.csv")
        counts = sorted({int(r["num_gpus"]) for r in rows})
        fitted["allreduce"] = {str(n): all_reduce(rows, n) | said for n in counts}
    return {**sheet, **fitted}


def _table(path: Path) -> list[Row]:
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}") from error


class _Dumper(yaml.SafeDumper):
    """Lists of numbers on one line, so that a sheet stays readable and small."""


def _flat_list(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    flat = all(isinstance(item, int | float | str) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]
_Dumper.add_representer(list, _flat_list)


def write_sheet(path: Path, sheet: dict[str, Any], command: str) -> None:
    """Writes a sheet with the command that made its curves on the first line."""
    body = yaml.dump(sheet, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    path.write_text(f"# Curves fitted by: {command}\n{body}")


def main(arguments: list[str]) -> int:
    """Refits the sheet named second to the tables in the folder named first."""
    if len(arguments) != 2:
        print(__doc__)
        return 2
    tables, path = Path(arguments[0]), Path(arguments[1])
    sheet = yaml.safe_load(path.read_text())
    source = sheet.get("tables_source") or "measured kernel tables"
    fitted = fit_sheet(tables, sheet, source)
    write_sheet(path, fitted, "python -m camshaft.diagnostics.cost.fit TABLES SHEET")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The fit finds again what a table was made from."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.cost import fit

BANDWIDTH, PEAK = 1e12, 1e14


def _write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_decode_coefficients_are_recovered() -> None:
    rows = []
    for batch in (1, 8, 64, 256):
        for kv in (1, 2, 8):
            for step in (127, 2047, 16383):
                moved = batch * (step + 1) * kv * 128 * 2 * 2
                us = 10 + 0.02 * batch * kv + moved / (BANDWIDTH * 0.8) * 1e6
                rows.append(
                    {
                        "kv_cache_dtype": "bfloat16",
                        "head_dim": "128",
                        "batch_size": str(batch),
                        "num_heads": str(kv * 4),
                        "num_key_value_heads": str(kv),
                        "step": str(step),
                        "latency": str(us / 1e3),
                    }
                )
    found = fit.decode_attention(rows, "bfloat16", BANDWIDTH, l2_bytes=1e6)
    assert found["floor_us"] == pytest.approx(10, rel=0.02)
    assert found["bandwidth_share"] == pytest.approx(0.8, rel=0.01)
    assert found["mean_error_percent"] < 1


def test_cached_rows_are_left_out() -> None:
    """Rows whose cache fits the L2 look three times too fast; the share stays that of memory."""
    rows = []
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        for step in (15, 1023, 8191):
            moved = batch * (step + 1) * 8 * 128 * 2 * 2
            rate = 3e12 if 2e6 < moved < 50e6 else 0.8e12
            rows.append(
                {
                    "kv_cache_dtype": "fp8" if batch < 0 else "bfloat16",
                    "head_dim": "128",
                    "batch_size": str(batch),
                    "num_heads": "32",
                    "num_key_value_heads": "8",
                    "step": str(step),
                    "latency": str((5 + moved / rate * 1e6) / 1e3),
                }
            )
    found = fit.decode_attention(rows, "bfloat16", BANDWIDTH, l2_bytes=50e6)
    assert found["bandwidth_share"] == pytest.approx(0.8, rel=0.02)


def test_a_missing_type_is_refused() -> None:
    with pytest.raises(EvidenceError):
        fit.gemm_curve([], "bfloat16", BANDWIDTH, PEAK)


def test_gemm_efficiency_is_recovered(tmp_path) -> None:
    rows = []
    for tokens in fit.TOKENS:
        for n in (512, 1024, 2048, 4096, 8192, 16384, 65536):
            for k in (512, 1024, 2048, 4096, 8192, 16384):
                moved = (tokens * k + n * k) * 2 + tokens * n * 2
                roof = max(moved / BANDWIDTH, 2 * tokens * n * k / PEAK) * 1e6
                rows.append(
                    {"gemm_dtype": "bfloat16", "m": tokens, "n": n, "k": k, "latency": roof / 0.7 / 1e3}
                )
    _write(tmp_path / "gemm.csv", rows)
    with (tmp_path / "gemm.csv").open(newline="") as file:
        curve = fit.gemm_curve(list(csv.DictReader(file)), "bfloat16", BANDWIDTH, PEAK)
    large = curve["efficiency_percent"][12][5][4]
    assert large == pytest.approx(70, abs=2)

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from camshaft.kernels.native import jit, mathematics, softmax, vector
from camshaft.kernels.native.vector import DEPTH, HEIGHT, ROW, WIDTH, tile

transpose: Any = vector.transpose
exponentials: Any = softmax.exponentials


@njit
def exp_all(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(x.shape[0]):
        out[i] = mathematics.exp(x[i])


@njit
def transposed(source: int, source_row: int, target: int, target_row: int) -> None:
    transpose(source, source_row, target, target_row)


@njit
def weighed(scores: int, scale: np.float32, peak: np.float32) -> np.float32:
    return exponentials(scores, scale, peak)


def test_exp_is_within_two_units_of_the_last_place() -> None:
    x = np.linspace(-79.9, 87.9, 200_001, dtype=np.float32)
    out = np.empty_like(x)
    exp_all(x, out)
    expected = np.exp(x.astype(np.float64))
    assert np.max(np.abs(out - expected) / np.spacing(expected.astype(np.float32))) < 2.0


def test_exp_at_its_edges() -> None:
    x = np.array([0.0, -0.0, -80.1, -1e30, -np.inf], dtype=np.float32)
    out = np.empty_like(x)
    exp_all(x, out)
    assert out[0] == 1.0
    assert out[1] == 1.0
    assert np.all(out[2:] == 0.0)  # nothing that would be subnormal once multiplied


def test_exp_has_the_same_bits_alone_and_in_a_vector() -> None:
    x = np.random.default_rng(0).normal(size=1000, scale=20).astype(np.float32)
    whole, alone = np.empty_like(x), np.empty_like(x)
    exp_all(x, whole)
    for i in range(len(x)):
        exp_all(x[i : i + 1], alone[i : i + 1])
    assert np.array_equal(whole, alone)


def test_a_row_of_weights_has_the_bits_of_exp() -> None:
    x = np.random.default_rng(0).normal(size=vector.FOLDED, scale=30).astype(np.float32)
    x[5:9] = -np.inf, -80.0, -80.5, -1e30
    peak, expected = np.float32(x.max()), np.empty_like(x)
    exp_all(x - peak, expected)
    added = weighed(x.ctypes.data, np.float32(1.0), peak)
    assert np.array_equal(x, expected)
    assert added == pytest.approx(expected.astype(np.float64).sum(), rel=1e-6)


@pytest.mark.parametrize("rows", range(1, HEIGHT + 1))
def test_tile_adds_in_the_order_of_k(rows: int) -> None:
    rng = np.random.default_rng(rows)
    k = DEPTH if rows % 2 else 7
    x = rng.normal(size=(rows, ROW)).astype(np.float32)
    w = rng.normal(size=(k, WIDTH)).astype(np.float32)
    acc = rng.normal(size=(rows, ROW)).astype(np.float32)
    untouched = acc[:, WIDTH:].copy()
    for chain in (0, 1):
        expected = acc[:, :WIDTH].copy() if chain else np.zeros((rows, WIDTH), dtype=np.float32)
        for i in range(k):  # float64 holds a product of two float32 exactly: one rounding, as in a fused step
            expected = (x[:, i : i + 1].astype(np.float64) * w[i] + expected).astype(np.float32)
        at = w.ctypes.data
        tile(rows, x.ctypes.data, at, WIDTH, k, acc.ctypes.data, chain, at, 0, at, 0)
        np.testing.assert_allclose(acc[:, :WIDTH], expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(acc[:, WIDTH:], untouched)


def test_transpose() -> None:
    wide = vector.LANES
    source = np.arange(8 * (wide + 3), dtype=np.float32).reshape(8, wide + 3)
    target = np.zeros((wide, 13), dtype=np.float32)
    transposed(source.ctypes.data, wide + 3, target.ctypes.data, 13)
    assert np.array_equal(target[:, :8], source[:, :wide].T)
    assert not target[:, 8:].any()


LIBRARIES = """
import torch
from camshaft.kernels.linear import make_linear
make_linear(torch.ones(64, 64))(torch.ones(2, 64)) @ torch.ones(64, 64)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line or "libiomp" in line})
"""


def test_numba_brings_no_second_openmp_library() -> None:
    ran = subprocess.run([sys.executable, "-c", LIBRARIES], capture_output=True, text=True, check=True)
    assert len(ran.stdout.split()) <= 1, ran.stdout


def test_machine_code_is_kept_in_the_cache_folder(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE", str(tmp_path))
    jit.cache_folder.cache_clear()
    try:
        folder = jit.cache_folder()
        assert folder is not None
        assert folder.parent == tmp_path / "numba"

        @jit.jit()
        def double(x: int) -> int:
            return 2 * x

        assert double(4) == 8
        assert list(folder.rglob("*double*.nbc"))
    finally:
        jit.cache_folder.cache_clear()


def test_without_a_writable_folder_functions_still_compile(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CAMSHAFT_CACHE", str(tmp_path / "file"))
    jit.cache_folder.cache_clear()
    try:
        assert jit.cache_folder() is None

        @jit.jit()
        def triple(x: int) -> int:
            return 3 * x

        assert triple(5) == 15
    finally:
        jit.cache_folder.cache_clear()


def compiled(folder: Path, *words: str, **environment: str) -> int:
    """How much a fresh process had to compile for a function and a worker."""
    return ended(compiling(folder, *words, **environment))


def compiling(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("compile_one.py")
    told = {**os.environ, "CAMSHAFT_CACHE": str(folder), **environment}
    return subprocess.Popen([sys.executable, script, *words], env=told, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> int:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return int(said)


def test_what_two_starts_at_once_compile_is_there_for_the_third(tmp_path: Path) -> None:
    both = [compiling(tmp_path) for _ in range(2)]
    assert sum([ended(process) for process in both])  # one may find what the other has compiled
    assert compiled(tmp_path) == 0
    assert compiled(tmp_path, "unwritable") == 0  # read where nothing may be written


def test_another_processor_has_machine_code_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        compiled(tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert compiled(tmp_path)
    assert len(list((tmp_path / "numba").iterdir())) == 2


def test_damaged_machine_code_is_compiled_anew(tmp_path: Path) -> None:
    assert compiled(tmp_path)
    for file in (tmp_path / "numba").rglob("*.nb*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert compiled(tmp_path)
    assert compiled(tmp_path) == 0


def test_on_a_full_disk_functions_still_compile(tmp_path: Path) -> None:
    assert compiled(tmp_path, "unwritable")


def test_lanes_are_those_of_the_host() -> None:
    assert vector.LANES in (8, 16)
    assert vector.DEPTH <= vector.ROW

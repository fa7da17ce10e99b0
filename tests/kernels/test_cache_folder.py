"""One cache folder for the whole package, wherever the environment puts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.diagnostics.simulate.devices import calibrated_sheet
from camshaft.kernels.cache_folder import cache_root
from camshaft.kernels.native import jit


@pytest.mark.parametrize(
    ("own", "xdg", "folder"),
    [
        ("{tmp}/own", "{tmp}/xdg", "own"),
        (None, "{tmp}/xdg", "xdg/camshaft"),
        (None, "relative", ".cache/camshaft"),
        (None, None, ".cache/camshaft"),
        ("~/mine", None, "mine"),
    ],
)
def test_every_room_keeps_its_files_under_one_folder(
    own: str | None, xdg: str | None, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in (("CAMSHAFT_CACHE", own), ("XDG_CACHE_HOME", xdg)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value.format(tmp=tmp_path))
    root = tmp_path / folder
    assert cache_root() == root
    assert calibrated_sheet() == root / "hardware.yaml"
    jit.cache_folder.cache_clear()
    try:
        code = jit.cache_folder()
    finally:
        jit.cache_folder.cache_clear()
    assert code is not None
    assert code.parent == root / "numba"

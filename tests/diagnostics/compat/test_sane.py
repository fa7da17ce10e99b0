"""Sane servers of every age: at their own release there is nothing to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from camshaft.diagnostics.compat.inputs.read import read_command, read_text
from camshaft.diagnostics.compat.run import check_all
from camshaft.diagnostics.cost.devices import find_device

ROWS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).with_name("sane") / "configurations.yaml").read_text(encoding="utf-8")
)


def test_there_are_enough_of_them() -> None:
    assert len(ROWS) >= 30
    assert len({row["release"] for row in ROWS}) >= 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["release"]))
def test_nothing_to_warn_about(row: dict[str, Any]) -> None:
    if "command" in row:
        configurations = read_command(row["command"])
    else:
        configurations = read_text(row.get("settings") or row["manifest"], "server.yaml")
    device = find_device(row["gpu"]) if "gpu" in row else None
    (result,) = check_all(
        configurations, start=row["release"], targets=[row["release"]], model=row.get("model"), device=device
    )
    assert result.starts is True, result.findings
    assert [finding for finding in result.findings if finding.severity != "info"] == []

"""A diagnosis from the parts of a case: a configuration's values, figures as people write them, lines of a log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from camshaft.diagnostics.diagnose import Report, diagnose, read_subject
from camshaft.diagnostics.evidence import observed_mapping, read_log_lines
from camshaft.diagnostics.results import parse_targets

Diagnose = Callable[..., Report]


@pytest.fixture
def examine(tmp_path: Path) -> Diagnose:
    def run(
        config: dict[str, Any],
        observed: dict[str, Any] | None = None,
        log: list[str] | None = None,
        *,
        slo: str = "",
        version: str | None = None,
        gpu: str | None = None,
        **options: Any,
    ) -> Report:
        path = tmp_path / "vllm.yaml"
        path.write_text(yaml.safe_dump(config) if config else "{}")
        evidence = observed_mapping(observed or {}, "observed").merge(read_log_lines(log or [], "server.log"))
        subject = read_subject(str(path), evidence, engine="vllm", version=version, gpu=gpu)
        return diagnose(subject, evidence, targets=parse_targets(slo), **options)

    return run

"""Results as SARIF 2.1.0 (OASIS), which code-scanning services read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..checks.codes import title_of
from ..checks.findings import Finding, Result

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def render(results: Sequence[Result]) -> str:
    """One run with every finding as a result and every code met as a rule."""
    from ....core.version import __version__

    codes = sorted({(finding.code, result.engine) for result in results for finding in result.findings})
    index = {code: position for position, (code, _) in enumerate(codes)}
    driver = {
        "name": "engine check-flags",
        "version": __version__,
        "rules": [
            {"id": code, "shortDescription": {"text": title_of(engine, code)}} for code, engine in codes
        ],
    }
    found = [_result(result, finding, index) for result in results for finding in result.findings]
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": found}],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _result(result: Result, finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    region = {"startLine": finding.place.line, "startColumn": finding.place.column}
    text = finding.message + (f" Fix: {finding.fix}" if finding.fix else "")
    return {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": _uri(finding.place.file)}, "region": region}}
        ],
        "properties": {
            "change": finding.change,
            "flags": list(finding.flags),
            "env": list(finding.env),
            "engine": result.engine,
            "to": result.target,
            "evidence": finding.evidence,
            "dependsOn": list(finding.depends_on),
        },
    }


def _uri(name: str) -> str:
    from urllib.parse import quote

    return quote(name.replace("\\", "/"))

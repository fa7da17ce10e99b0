"""The diagnosis as JSON: `{"verdict", "alternatives", "limits", "memory", "evidence", "assumptions", "flags"}`."""

from __future__ import annotations

import json

from ..diagnose.model import Report


def render(report: Report) -> str:
    """The published JSON document, indented."""
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=False, default=str)

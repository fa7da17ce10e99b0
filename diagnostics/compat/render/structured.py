"""Results as JSON: `{"results": [{"input", "engine", "from", "to", "starts", "findings": [...]}]}`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..checks.findings import Result


def render(results: Sequence[Result]) -> str:
    """The published JSON document, indented."""
    return json.dumps({"results": [result.as_dict() for result in results]}, indent=2, ensure_ascii=False)

"""JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from .errors import ModelError


def read_json(file: Path, *, strict: bool = True) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError naming the file: missing, not JSON, or, if `strict`, with a number
    that JSON has not, NaN or Infinity.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        value = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse if strict else None)
    except FileNotFoundError as error:
        raise ModelError(f"{file}: no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def read_json_if_present(file: Path) -> dict[str, Any]:
    """As `read_json`, but an absent file is an empty object."""
    return read_json(file) if file.exists() else {}


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Writes UTF-8 JSON, indented, with a final newline."""
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""Packs the hand-kept data into JSON, which decodes in a fraction of a millisecond.

Run `python -m camshaft.diagnostics.compat.releases.pack` after editing `changes.yaml` or `dialects.yaml`; a test holds
the packed files to them.
"""

from __future__ import annotations

from pathlib import Path

from ....core.places import load_yaml
from .storage import rows

FOLDER = Path(__file__).parent
NAMES = ("changes", "dialects")
COMMAND = "python -m camshaft.diagnostics.compat.releases.pack"


def pack(name: str) -> bytes:
    """The packed form of one data file, one entry a line so that differences can be read."""
    data = load_yaml((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return rows({"generated_by": COMMAND, **data}, 3).encode() + b"\n"


def main() -> None:
    for name in NAMES:
        (FOLDER / f"{name}.json").write_bytes(pack(name))


if __name__ == "__main__":
    main()

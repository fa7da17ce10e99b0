"""The rooms of the flag checker stand on floors, and imports go downwards only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import camshaft.diagnostics.compat as package

ROOT = Path(next(iter(package.__path__)))
# From the top; a room may import those below it.
FLOORS = (
    {"run", "fix"},
    {"check", "render"},
    {"checks"},
    {"parsing"},
    {"rules", "harvest"},
    {"facts", "inputs"},
    {"releases"},
)
HEIGHT = {room: -number for number, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def rooms_imported(path: Path) -> set[str]:
    """The rooms beside its own that a file imports, anywhere in it."""
    own = path.relative_to(ROOT).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = own[: len(own) - node.level] if node.level <= len(own) else None
            if folder == ():
                found |= {node.module.split(".")[0]} if node.module else {a.name for a in node.names}
    return found - {own[0]}


def test_every_room_has_a_floor() -> None:
    assert {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES} == set(HEIGHT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_downwards(path: Path) -> None:
    own = HEIGHT[path.relative_to(ROOT).with_suffix("").parts[0]]
    assert {room for room in rooms_imported(path) if HEIGHT[room] >= own} == set()


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in FILES} - {ROOT}), ids=lambda path: path.name
)
def test_every_room_says_what_it_holds(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


def test_an_import_upwards_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "facts").mkdir()
    path = tmp_path / "facts" / "x.py"
    path.write_text(
        "def f():\n    from ..checks.names import a\n    from .. import run\n    from .b import c\n"
    )
    assert rooms_imported(path) == {"checks", "run"}

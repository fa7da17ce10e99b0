"""Finds a rule's fingerprint in an unpacked release: the file, the line, and the guard that leads there.

A fingerprint is a piece of an error message or of code. Messages are split over string literals and re-wrapped
from release to release, so the words are searched with any quotes and line breaks between them. The guard is the
conjunction of the conditions around the line, as `ast` reads them; nothing of the release is ever imported.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from .evidence import Location


class Fingerprint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Words to look for (`text`), and the path prefixes under the package that may hold them (`under`)."""

    text: str
    under: list[str]
    guard: str = ""  # words the guard must contain, where the message alone is ambiguous


_GLUE = r"(?:\s|[\"'\\]|\b[fr](?=[\"']))+"


def words_pattern(text: str) -> re.Pattern[str]:
    """A pattern for the words of `text` in a source file, across string pieces and line breaks."""
    return re.compile(_GLUE.join(re.escape(word) for word in text.split()))


@dataclass
class SourceTree:
    """One unpacked release, read lazily: `root` holds the package directory `package`."""

    root: Path
    package: str = "vllm"
    _texts: dict[Path, str] = field(default_factory=dict)
    _trees: dict[Path, ast.Module] = field(default_factory=dict)

    def files(self, under: list[str]) -> list[Path]:
        """Python files whose path below the package is, or lies in, one of `under`, in that order."""
        found: dict[Path, None] = {}
        for prefix in under:
            base = self.root / self.package / prefix
            if base.suffix == ".py":
                paths = [base] if base.is_file() else []
            else:
                paths = sorted(base.rglob("*.py"))
            found.update(dict.fromkeys(paths))
        return list(found)

    def text(self, path: Path) -> str:
        if path not in self._texts:
            self._texts[path] = path.read_text(encoding="utf-8", errors="replace")
        return self._texts[path]

    def tree(self, path: Path) -> ast.Module:
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(self.text(path))
            except SyntaxError:
                self._trees[path] = ast.Module(body=[], type_ignores=[])
        return self._trees[path]

    def locate(self, fingerprints: list[Fingerprint]) -> Location | None:
        """The first place that matches the first matching fingerprint, or None."""
        for fingerprint in fingerprints:
            location = self._locate_one(fingerprint)
            if location is not None:
                return location
        return None

    def _locate_one(self, fingerprint: Fingerprint) -> Location | None:
        pattern = words_pattern(fingerprint.text)
        longest = max(fingerprint.text.split(), key=len)
        for path in self.files(fingerprint.under):
            text = self.text(path)
            if longest not in text:
                continue
            for match in pattern.finditer(text):
                line, guard = guard_at(self.tree(path), text.count("\n", 0, match.start()) + 1)
                if fingerprint.guard in guard:
                    return Location(path.relative_to(self.root).as_posix(), line, guard)
        return None


def guard_at(tree: ast.Module, line: int) -> tuple[int, str]:
    """The first line of the statement at `line`, and the conditions under which its function reaches it.

    Conditions stand outermost first, joined by ``and``; an assertion adds its negation, for its message is
    reached when the test fails.
    """
    conditions: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        statement = next((s for s in body if _first_line(s) <= line <= (s.end_lineno or s.lineno)), None)
        if statement is None:
            return line, " and ".join(conditions)
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                conditions.clear()
                body = statement.body
            case ast.If(test=test, body=then, orelse=otherwise):
                source = _wrapped(ast.unparse(test))
                if line <= (test.end_lineno or test.lineno):
                    return statement.lineno, " and ".join([*conditions, source])
                in_then = line <= (then[-1].end_lineno or then[-1].lineno)
                conditions.append(source if in_then else f"not {source}")
                body = then if in_then else otherwise
            case ast.Assert(test=test):
                return statement.lineno, " and ".join([*conditions, f"not {_wrapped(ast.unparse(test))}"])
            case ast.Match(cases=cases):
                body = [inner for case in cases for inner in case.body]
            case ast.Try(body=then, handlers=handlers, orelse=otherwise, finalbody=last):
                body = [*then, *(s for h in handlers for s in h.body), *otherwise, *last]
            case (
                ast.With(body=inner) | ast.For(body=inner) | ast.While(body=inner) | ast.AsyncWith(body=inner)
            ):
                body = inner
            case _:
                return statement.lineno, " and ".join(conditions)


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _wrapped(source: str) -> str:
    return f"({source})" if " " in source else source

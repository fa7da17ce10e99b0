"""Evidence: found in a source tree, told when it moves, changes, vanishes or appears, packed without loss."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.compat.rules import evidence
from camshaft.diagnostics.compat.rules.locate import Fingerprint, SourceTree, guard_at
from camshaft.diagnostics.compat.rules.pack import Examples, Source
from camshaft.diagnostics.compat.rules.records import Rule
from camshaft.diagnostics.compat.rules.verify import Subject, record, subject, subjects, verify

OLD = '''
class Config:
    def check(self, size):
        """Doc."""
        if self.mode == "fast":
            if size > self.limit:
                raise ValueError(
                    f"size ({size}) is above "
                    "the limit of fast mode")
        else:
            assert size > 0, "size must be positive"
'''
MOVED = "import os\n" + OLD
CHANGED = OLD.replace("size > self.limit", "size >= self.limit")
VANISHED = OLD.replace("is above", "exceeds")


def rule(code: str, text: str, until: str | None = None) -> Subject:
    record = {"since": "1.0.0", "evidence": "vllm/config.py:6"} | ({"until": until} if until else {})
    fields = {
        "code": code,
        "title": code,
        "severity": "error",
        "change": "conflict",
        "consequence": "It fails.",
    }
    example = {"version": "1.0.0"}
    source = Source(
        msgspec.convert(fields | {"versions": [record], "when": ["lit", True]}, Rule),
        [Fingerprint(text, ["config.py"])],
        msgspec.convert({"fails": example, "passes": example}, Examples),
    )
    return subject(source)


def test_computed_defaults_are_looked_up_too() -> None:
    part = next(part for part in subjects("vllm") if part.code == "default async_scheduling")
    assert part.claims("0.33.0")
    assert part.claims("0.14.0")
    part = next(part for part in subjects("vllm") if part.code == "default block_size")
    assert not part.claims("0.6.0")


LIMIT = rule("R-1", "is above the limit of fast mode")
POSITIVE = rule("R-2", "size must be positive", until="1.0.0")


def release(folder: Path, version: str, text: str) -> Path:
    root = folder / version
    (root / "vllm").mkdir(parents=True)
    (root / "vllm" / "config.py").write_text(text)
    return root


def test_a_message_is_found_across_its_pieces_with_its_guard(tmp_path: Path) -> None:
    tree = SourceTree(release(tmp_path, "1.0.0", OLD))
    location = tree.locate(LIMIT.fingerprint)
    assert location is not None
    assert location.text == "vllm/config.py:7"
    assert location.guard == "(self.mode == 'fast') and (size > self.limit)"
    location = tree.locate(POSITIVE.fingerprint)
    assert location is not None
    assert location.guard == "not (self.mode == 'fast') and not (size > 0)"


def test_a_guard_can_tell_two_messages_apart(tmp_path: Path) -> None:
    text = "def f(a):\n    if a:\n        raise E('no')\n    if not a:\n        raise E('no')\n"
    tree = SourceTree(release(tmp_path, "1.0.0", text))
    location = tree.locate([Fingerprint("raise E('no')", ["config.py"], guard="not a")])
    assert location is not None
    assert location.line == 5


@pytest.mark.parametrize(
    ("text", "status", "now"),
    [
        (OLD, "same", "vllm/config.py:7"),
        (MOVED, "moved", "vllm/config.py:8"),
        (CHANGED, "changed", "vllm/config.py:7"),
        (VANISHED, "vanished", None),
    ],
)
def test_what_became_of_a_rule(tmp_path: Path, text: str, status: str, now: str | None) -> None:
    index = record("vllm", {"1.0.0": release(tmp_path, "1.0.0", OLD)}, [LIMIT])
    report = verify("vllm", "1.1.0", release(tmp_path, "1.1.0", text), [LIMIT], index)
    (verdict,) = report.verdicts
    assert (verdict.status, verdict.now, verdict.before) == (status, now, "vllm/config.py:7")
    assert f"{status}: 1" in report.text()
    assert report.compared_with == "1.0.0"
    assert msgspec.json.decode(report.json())["verdicts"][0]["status"] == status


def test_code_that_outlives_its_claim_is_told_of_a_new_release_only(tmp_path: Path) -> None:
    roots = {"1.0.0": release(tmp_path, "1.0.0", OLD), "1.2.0": release(tmp_path, "1.2.0", OLD)}
    index = record("vllm", roots, [POSITIVE])
    newer = verify("vllm", "1.3.0", release(tmp_path, "1.3.0", OLD), [POSITIVE], index)
    assert [verdict.status for verdict in newer.verdicts] == ["appeared"]
    assert not verify("vllm", "1.2.0", roots["1.2.0"], [POSITIVE], index).verdicts


def test_recording_one_release_keeps_the_others(tmp_path: Path) -> None:
    first = record("vllm", {"1.0.0": release(tmp_path, "1.0.0", OLD)}, [LIMIT])
    both = record("vllm", {"1.1.0": release(tmp_path, "1.1.0", MOVED)}, [LIMIT], known=first)
    assert both.releases == ["1.0.0", "1.1.0"]
    lines = {name: place.line for name, place in evidence.records(both, "R-1").items()}
    assert lines == {"1.0.0": 7, "1.1.0": 8}


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="holds no unpacked vllm"):
        verify("vllm", "1.0.0", tmp_path, [LIMIT])


def test_a_file_that_does_not_parse_is_found_by_its_text(tmp_path: Path) -> None:
    tree = SourceTree(release(tmp_path, "1.0.0", OLD + "\n)("))
    location = tree.locate(LIMIT.fingerprint)
    assert location is not None
    assert location.guard == ""


def test_the_index_survives_packing() -> None:
    place = evidence.Location
    located = {
        "A": {"1": place("a.py", 3, "x"), "2": place("a.py", 4, "x"), "4": place("a.py", 9, "x")},
        "B": {"2": place("b.py", 1, "x"), "3": place("b.py", 1, "y"), "4": place("c.py", 1, "y")},
    }
    index = evidence.decode(evidence.encode(evidence.build("make it", ["1", "2", "3", "4"], located)))
    assert {code: evidence.records(index, code) for code in index.rules} == located
    assert [len(index.rules[code]) for code in ("A", "B")] == [2, 3]


def test_conditions_of_every_kind_of_block() -> None:
    import ast

    text = (
        "def f(x):\n    for i in x:\n        with x:\n            try:\n                g()\n"
        "            except E:\n                if i:\n                    h()\n    match x:\n        case 1:\n            k()\n"
    )
    tree = ast.parse(text)
    assert guard_at(tree, 8) == (8, "i")
    assert guard_at(tree, 11) == (11, "")

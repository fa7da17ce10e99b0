"""Looks each rule's evidence up in the source of a release: what moved, what changed, what vanished, what appeared.

``engine matrix verify VERSION`` prints the report, so that a new release costs a review of the few rules it touches.
``python -m camshaft.diagnostics.compat.rules.verify FOLDER`` records the places in the releases unpacked under FOLDER (one
sub-folder a release) in the evidence index that is shipped; other releases keep what is recorded of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from ....core.errors import EvidenceError
from ..releases.versions import parse, within
from . import evidence
from .evidence import Index, Location
from .locate import Fingerprint, SourceTree
from .pack import Source, default_fingerprints, sources
from .records import TermRange, load

COMMAND = "python -m camshaft.diagnostics.compat.rules.verify FOLDER"

Status = Literal["same", "moved", "changed", "vanished", "appeared"]


@dataclass(frozen=True)
class Subject:
    """What is looked up: a rule, or the code that computes a default; `claims` says for which releases."""

    code: str
    title: str
    fingerprint: list[Fingerprint]
    claims: Callable[[str], bool]


def subjects(engine: str) -> list[Subject]:
    """Every rule of an engine, and every default that its releases compute."""
    defaults = load(engine).defaults
    computed = [
        Subject(f"default {name}", f"Computed default of {name}", prints, partial(_computed, defaults[name]))
        for name, prints in default_fingerprints(engine).items()
    ]
    return [*map(subject, sources(engine)), *computed]


def subject(source: Source) -> Subject:
    """A rule as something to look up."""
    rule = source.rule
    return Subject(rule.code, rule.title, source.fingerprint, lambda version: rule.held(version) is not None)


def _computed(ranges: Sequence[TermRange], version: str) -> bool:
    return any(within(parse(version), part.since, part.until) for part in ranges)


@dataclass(frozen=True)
class Verdict:
    """What became of one rule's code: `before` and `now` are ``file:line``; `guard` is the condition as it reads now.

    same: in the same place under the same conditions. moved: elsewhere, under the same conditions. changed: under
    other conditions. vanished: not found, though the rule claims the release. appeared: found, and not claimed.
    """

    code: str
    title: str
    status: Status
    before: str | None
    now: str | None
    guard: str


@dataclass(frozen=True)
class Report:
    """The verdicts for one release, and the recorded release they were compared with."""

    engine: str
    version: str
    compared_with: str | None
    verdicts: tuple[Verdict, ...] = field(default_factory=tuple)

    def of(self, status: Status) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.status == status)

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def text(self) -> str:
        against = f", compared with {self.compared_with}" if self.compared_with else ""
        lines = [f"{self.engine} {self.version}: {len(self.verdicts)} places looked up{against}"]
        for status in ("vanished", "changed", "appeared", "moved"):
            found = self.of(status)
            lines.append(f"{status}: {len(found)}")
            lines += [_told(verdict) for verdict in found]
        lines.append(f"same: {len(self.of('same'))}")
        return "\n".join(lines)


def _told(verdict: Verdict) -> str:
    place = " -> ".join(part for part in (verdict.before, verdict.now) if part)
    line = f"  {verdict.code}  {verdict.title}  {place}"
    if verdict.status in ("changed", "appeared") and verdict.guard:
        line += f"\n      now under: {verdict.guard[:300]}"
    return line


def verify(
    engine: str,
    version: object,
    root: Path,
    looked_up: Sequence[Subject] | None = None,
    index: Index | None = None,
) -> Report:
    """The report on `version`, whose source is unpacked at `root` (which holds the package's folder).

    `looked_up` and `index` default to those shipped. Raises EvidenceError when `root` holds no such package.
    """
    text = str(version)
    tree = _tree(engine, root)
    looked_up = subjects(engine) if looked_up is None else looked_up
    index = evidence.load_index(engine) if index is None else index
    baseline = _baseline(index.releases, text)
    newest = not index.releases or parse(text) > parse(index.releases[-1])
    verdicts = [_verdict(part, tree, text, baseline, index, newest) for part in looked_up]
    return Report(engine, text, baseline, tuple(v for v in verdicts if v is not None))


def _tree(engine: str, root: Path) -> SourceTree:
    if not (root / engine).is_dir():
        raise EvidenceError(f"{root} holds no unpacked {engine}: there is no folder {engine} in it")
    return SourceTree(root, engine)


def _baseline(releases: Sequence[str], version: str) -> str | None:
    """The recorded release to compare with: the version itself, else the newest below it."""
    below = [release for release in releases if parse(release) <= parse(version)]
    return below[-1] if below else None


def _verdict(
    part: Subject, tree: SourceTree, version: str, baseline: str | None, index: Index, newest: bool
) -> Verdict | None:
    claimed = part.claims(version)
    location = tree.locate(part.fingerprint)
    if not claimed and (location is None or not newest):
        return None
    known = evidence.records(index, part.code)
    before = known.get(baseline) if baseline else None
    return Verdict(
        code=part.code,
        title=part.title,
        status=_status(claimed, location, before),
        before=before.text if before else None,
        now=location.text if location else None,
        guard=location.guard if location else "",
    )


def _status(claimed: bool, location: Location | None, before: Location | None) -> Status:
    if location is None:
        return "vanished"
    if not claimed:
        return "appeared"
    if before is None or evidence.digest(location.guard) != before.guard:
        return "changed"
    return "same" if location.text == before.text else "moved"


def record(
    engine: str,
    roots: Mapping[str, Path],
    looked_up: Iterable[Subject] | None = None,
    known: Index | None = None,
) -> Index:
    """The index of every subject over the releases unpacked at `roots` (by version), where it claims them.

    Of releases that are only in `known`, what it records of these subjects is kept.
    """
    looked_up = list(subjects(engine) if looked_up is None else looked_up)
    kept = [release for release in (known.releases if known else []) if release not in roots]
    found = {part.code: _kept(known, part, kept) for part in looked_up}
    for release, root in roots.items():
        tree = _tree(engine, root)
        for part in looked_up:
            location = tree.locate(part.fingerprint)
            if location is not None and part.claims(release):
                found[part.code][release] = replace(location, guard=evidence.digest(location.guard))
    return evidence.build(COMMAND, sorted([*kept, *roots], key=parse), found)


def _kept(known: Index | None, part: Subject, releases: Iterable[str]) -> dict[str, Location]:
    places = evidence.records(known, part.code) if known else {}
    return {release: places[release] for release in releases if release in places and part.claims(release)}


def main(arguments: Sequence[str]) -> None:
    """Write the index for the releases unpacked under the folder given."""
    if len(arguments) != 1:
        raise SystemExit(f"usage: {COMMAND}")
    folder = Path(arguments[0])
    roots = {
        path.name: path for path in folder.iterdir() if (path / "vllm").is_dir() and path.name[:1].isdigit()
    }
    evidence.index_path("vllm").write_bytes(
        evidence.encode(record("vllm", roots, known=evidence.load_index("vllm")))
    )


if __name__ == "__main__":
    main(sys.argv[1:])

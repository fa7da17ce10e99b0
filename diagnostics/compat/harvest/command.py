"""What `engine matrix harvest` does: a release's source to a stored table, and what changed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..releases.difference import TableDifference, difference
from ..releases.table import Table, load
from ..releases.versions import UnknownVersion, Version, parse, versions
from .add import add_tables, has_table, records
from .errors import HarvestError
from .fetch import Progress, fetch_release, unpack
from .release import Harvest, harvest


@dataclass(frozen=True)
class Done:
    """The outcome of a harvest: a sentence, what changed since the release before, what could not be worked out."""

    summary: str
    difference: TableDifference | None
    unresolved: list[str]


@contextmanager
def release_source(engine: str, version: str, source: Path | None, progress: Progress) -> Iterator[Path]:
    """The folder that holds a release's package: `source` (unpacked first when it is an archive), or fetched.

    Raises HarvestError or UnknownVersion when it cannot be had.
    """
    parse(version)
    if engine != "vllm":
        raise HarvestError(f"{engine} is not made from a fetched release")
    if source is not None and source.is_dir():
        yield _package_root(source)
        return
    with tempfile.TemporaryDirectory(prefix="camshaft-harvest-") as folder:
        into = Path(folder)
        if source is not None:
            unpack(source, engine, into)
        else:
            fetch_release(engine, version, into, progress)
        yield into


def _package_root(source: Path) -> Path:
    for root in (source, source.parent):
        if (root / "vllm" / "engine" / "arg_utils.py").is_file():
            return root
    raise HarvestError(f"{source} holds no vLLM: expected vllm/engine/arg_utils.py in it")


def harvest_release(engine: str, version: str, source: Path | None, progress: Progress, store: bool) -> Done:
    """Make the table of a release, store it unless told not to, and compare it with the release before."""
    with release_source(engine, version, source, progress) as root:
        try:
            made = harvest(root)
        except (SyntaxError, RecursionError) as error:
            raise HarvestError(f"the source of {engine} {version} cannot be read: {error}") from error
    return _finish(engine, parse(version), made, store)


def harvest_camshaft(store: bool) -> Done:
    """The same for this installation, from its configuration schema."""
    from .own import own_release, own_table

    return _finish("camshaft", own_release(), own_table(), store)


def _finish(engine: str, version: Version, made: Harvest, store: bool) -> Done:
    table = Table(engine, version, made.flags, made.env)
    before = _release_before(engine, version)
    changed = None if before is None else difference(before, table)
    again = has_table(engine, str(version))
    if store:
        try:
            add_tables(engine, {str(version): records(made.flags, made.env, made.refusals)})
        except OSError as error:
            raise HarvestError(f"the table cannot be stored: {error}") from error
    verb = ("replaced" if again else "added") if store else "not stored"
    counts = f"{len(made.flags)} flags, {len(made.env)} environment variables, {len(made.refusals)} refusals"
    return Done(f"{engine} {version}: {counts}; {verb}", changed, made.unresolved)


def _release_before(engine: str, version: Version) -> Table | None:
    try:
        lower = [known for known in versions(engine) if known < version]
    except UnknownVersion:
        return None
    return load(engine, lower[-1]) if lower else None

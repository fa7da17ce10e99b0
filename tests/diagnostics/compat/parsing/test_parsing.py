"""The parser says what argparse itself says, option by option, and then goes on where argparse stops."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.diagnostics.compat.facts.unknown import Unknown
from camshaft.diagnostics.compat.inputs.base import Source, Word
from camshaft.diagnostics.compat.inputs.read import read_command
from camshaft.diagnostics.compat.parsing.arguments import Argument
from camshaft.diagnostics.compat.parsing.conversion import BadValue, convert, human_readable
from camshaft.diagnostics.compat.parsing.parser import Parsed, Parser
from camshaft.diagnostics.compat.releases.table import Flag, Table, load
from camshaft.diagnostics.compat.releases.versions import parse
from camshaft.diagnostics.compat.run import check_all

SOURCE = Source("test", "")


def arguments(texts: Sequence[str], opaque: Sequence[str] = ()) -> list[Argument]:
    return [
        Argument(text, (Word(text, SOURCE.place(0), SOURCE, 0, 0),), opaque=text in opaque) for text in texts
    ]


class Refused(Exception):
    pass


class Real(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)


def real_parser(table: Table) -> Real:
    """argparse's own parser with the table's options; values are converted one by one as the table says."""
    real = Real(add_help=False)
    real.add_argument("positional", nargs="?")
    for flag in table.flags.values():
        names, options = [flag.name, *flag.aliases], {"dest": flag.dest, "default": None}
        if flag.kind == "store_true":
            real.add_argument(*names, action="store_true", dest=flag.dest)
        elif flag.kind == "boolean_optional":
            real.add_argument(*names, action=argparse.BooleanOptionalAction, **options)
        elif flag.kind == "store_boolean" or flag.parse == "optional_value":
            real.add_argument(*names, nargs="?", type=one(flag), const=True, **options)
        elif flag.kind == "append":
            real.add_argument(*names, action="append", type=one(flag), **options)
        else:
            real.add_argument(*names, nargs=flag.nargs, type=one(flag), **options)
    return real


def one(flag: Flag) -> Any:
    single = Flag(
        name=flag.name,
        type=flag.type,
        kind=flag.kind,
        choices=flag.choices,
        optional=flag.optional,
        nested=flag.nested,
    )
    single.parse = None if flag.parse == "optional_value" else flag.parse

    def converted(text: str) -> Any:
        try:
            return convert(single, [text])
        except BadValue as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


TABLES = {
    version: load("vllm", parse(version)) for version in ("0.6.6", "0.8.0", "0.10.2", "0.18.0", "0.32.0")
}
REALS = {version: real_parser(table) for version, table in TABLES.items()}


def refuses(parsed: Parsed) -> bool:
    return bool(parsed.misuses) or len(parsed.positionals) > 1


WORDS = st.sampled_from(
    ["1", "0.5", "-1", "true", "False", "x", "auto", "{}", '{"a":1}', "", "4k", "a b", "-x y"]
)


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    version = draw(st.sampled_from(sorted(TABLES)))
    spellings = TABLES[version].spellings()
    words = ["m"]
    for _ in range(draw(st.integers(1, 4))):
        spelled = draw(st.sampled_from(spellings))
        if draw(st.integers(0, 3)) == 0 and spelled.startswith("--"):
            spelled = spelled[: draw(st.integers(5, len(spelled)))]
        values = draw(st.lists(WORDS, max_size=2))
        if values and draw(st.booleans()) and spelled.startswith("--"):
            words.append(f"{spelled}={values[0]}")
        else:
            words += [spelled, *values]
    return version, words


@settings(max_examples=400, deadline=None, derandomize=True)
@given(lines())
def test_agrees_with_argparse(line: tuple[str, list[str]]) -> None:
    version, words = line
    parsed = Parser(TABLES[version]).parse(arguments(words))
    try:
        namespace, extra = REALS[version].parse_known_args(words)
    except Refused:
        assert refuses(parsed), words
        return
    assert refuses(parsed) == bool(extra), (words, extra, parsed.misuses)
    if not extra:
        for name, value in parsed.values().items():
            assert getattr(namespace, name) == value, (words, name)


def test_goes_on_after_a_mistake() -> None:
    words = ["m", "--swap-space", "4", "--max-num-seqs", "many", "--seed", "3", "--enforce-eager=1"]
    parsed = Parser(TABLES["0.18.0"]).parse(arguments(words))
    assert [misuse.kind for misuse in parsed.misuses] == ["unknown", "bad_value", "explicit_value"]
    assert parsed.values()["seed"] == 3
    assert [word.text for word in parsed.positionals] == ["m"]


def test_what_only_a_shell_knows_is_unknown_and_no_mistake() -> None:
    parsed = Parser(TABLES["0.18.0"]).parse(
        arguments(["--max-num-seqs", "$N", "$REST"], opaque=["$N", "$REST"])
    )
    assert isinstance(parsed.values()["max_num_seqs"], Unknown)
    assert parsed.misuses == []
    assert [word.text for word in parsed.opaque] == ["$REST"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2M", 2 * 2**20), ("8192", 8192), (" 4 ", 4)],
)
def test_human_readable_numbers(text: str, value: int) -> None:
    assert human_readable(text) == value


@pytest.mark.parametrize("text", ["1.5K", "k", "", "1kk", "0x10", "1_0k"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(BadValue):
        human_readable(text)


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ("--cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size 4", True),
        ("--cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size 8", False),
        ("--cudagraph-capture-sizes 1 two", False),
    ],
)
def test_the_words_of_a_list_are_read_by_their_type(options: str, starts: bool) -> None:
    (result,) = check_all(read_command(f"vllm serve m {options}"), targets=["0.18.0"])
    assert result.starts is starts

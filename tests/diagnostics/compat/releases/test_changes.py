"""The hand-kept data agrees with the tables: names exist, defaults are what the tables say, removals are real."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from camshaft.diagnostics.compat.checks.codes import own_codes
from camshaft.diagnostics.compat.releases import history, table
from camshaft.diagnostics.compat.releases.changes import DefaultChange, Pair, ValueChange, changes
from camshaft.diagnostics.compat.releases.dialect import dialect, evidence
from camshaft.diagnostics.compat.releases.names import names
from camshaft.diagnostics.compat.releases.pack import COMMAND, FOLDER, NAMES, pack
from camshaft.diagnostics.compat.releases.versions import parse, versions

DATA = changes("vllm")
RELEASES = versions("vllm")


@pytest.mark.parametrize("name", list(DATA.options))
def test_options_that_went_or_go_are_known(name: str) -> None:
    change = DATA.options[name]
    flag, _, key = name.partition(".")
    life = history.keys("vllm", flag) if key else history.options("vllm")
    spans = life.spans(key or name)
    assert spans
    gone = spans[-1].gone is not None
    assert gone or life.deprecated_since(key or name, RELEASES[-1]) is not None
    renamed = change.rename.split(".")[0] if change.rename else None
    for other in (change.into, renamed, *change.set):
        assert other is None or history.options("vllm").spans(other)
    for chosen in change.by_value.values():
        assert all(history.options("vllm").spans(flag) for flag in chosen)


def test_every_option_that_went_has_a_reason() -> None:
    lives = history.options("vllm")
    gone = {
        name
        for version in RELEASES
        for name in table.load("vllm", version).flags
        if lives.removed_by(name, RELEASES[-1]) and name not in table.load("vllm", RELEASES[-1]).flags
    }
    assert sorted(gone - set(DATA.options)) == []


@pytest.mark.parametrize("change", DATA.defaults, ids=lambda change: f"{change.flag}@{change.at}")
def test_default_changes_are_what_the_tables_say(change: DefaultChange) -> None:
    after = parse(change.at)
    before = RELEASES[RELEASES.index(after) - 1]
    if change.flag.startswith("-"):
        old, new = (table.load("vllm", version).flags.get(change.flag) for version in (before, after))
        assert new is not None
        assert new.default == change.new
        assert old is None or old.default == change.old or change.flag == "--enable-log-requests"
    else:
        old, new = (table.load("vllm", version).env[change.flag] for version in (before, after))
        assert (old.default, new.default) != (new.default, old.default) or change.old == change.new
        assert str(int(new.default)) == change.new if isinstance(new.default, bool) else True


def went() -> dict[tuple[str, str], str]:
    """(option or key, name or choice) and the release without it, of those that the newest release lacks."""
    found = {
        (option, name): str(lives[-1][1])
        for option, known in names("vllm").items()
        for name, lives in known.items()
        if lives[-1][1] is not None
    }
    tables = [table.load("vllm", version) for version in RELEASES]
    for before, after in pairwise(tables):
        for option, choices in choices_of(before).items():
            left = (
                choices - choices_of(after).get(option, choices) - choices_of(tables[-1]).get(option, choices)
            )
            found |= {
                (option, choice): str(after.version) for choice in left if (option, choice) not in found
            }
    return found


@cache
def choices_of(release: table.Table) -> dict[str, set[str]]:
    """The choices of each option, and of each JSON key behind its option and a dot."""
    flags = release.flags.values()
    given = {flag.name: flag.choices for flag in flags}
    given |= {f"{flag.name}.{key}": field.choices for flag in flags for key, field in flag.nested.items()}
    return {name: set(map(str, choices)) - {"None"} for name, choices in given.items() if choices}


WENT = went()


@pytest.mark.parametrize("change", DATA.values, ids=lambda change: f"{change.flag} {change.value}")
def test_values_went_when_the_data_says(change: ValueChange) -> None:
    assert WENT[change.flag, change.value] == change.gone


def test_every_name_and_choice_that_went_has_a_reason_and_what_to_do() -> None:
    told = {(change.flag, change.value) for change in DATA.values if change.fix}
    shorter = {(option, name) for option, name in WENT if name.endswith("_VLLM_V1")}
    newest = table.load("vllm", RELEASES[-1])
    kept = {(option, value) for option, value in WENT if option.partition(".")[0] in newest.flags}
    assert sorted(kept - told - shorter) == []


@pytest.mark.parametrize("name", list(DATA.variables))
def test_variables_are_known(name: str) -> None:
    assert history.variables("vllm").spans(name)
    option = DATA.variables[name].option
    assert option is None or history.options("vllm").spans(option.split(".")[0])


@pytest.mark.parametrize("pair", DATA.pairs, ids=lambda pair: pair.flag)
def test_pairs_name_options_of_their_releases(pair: Pair) -> None:
    flags = table.load("vllm", parse(pair.since)).flags
    assert pair.flag in flags
    assert (pair.needs or pair.excludes) in flags


def test_dialects_cover_every_release_and_have_evidence() -> None:
    first, last = dialect("vllm", RELEASES[0]), dialect("vllm", RELEASES[-1])
    assert (first.yaml_false, last.yaml_false) == ("literal", "negated")
    assert (first.optimization, last.optimization) == ("plain", "flag")
    for feature in first.__struct_fields__:
        assert evidence("vllm", RELEASES[0], feature)


def test_codes_have_examples_that_differ() -> None:
    for page in own_codes().values():
        assert page.bad != page.good


@pytest.mark.parametrize("name", NAMES)
def test_packed_form_is_current(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_bytes() == pack(name), f"run {COMMAND}"


@pytest.mark.parametrize("name", [name for name, change in DATA.variables.items() if change.option])
def test_a_variable_hands_on_its_value_or_says_what_to_write(name: str) -> None:
    """A switch of 0 or 1 must not become the value of an option that takes names."""
    change = DATA.variables[name]
    option, _, key = (change.option or "").partition(".")
    flag = table.load("vllm", RELEASES[-1]).flags.get(option)
    if flag is not None and not change.fix and not key and "_USE_" in name:
        assert flag.type == "bool"

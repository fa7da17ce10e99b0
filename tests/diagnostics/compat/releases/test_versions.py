from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version as ReferenceVersion

from camshaft.diagnostics.compat.releases.versions import UnknownVersion, parse, resolve, versions

numbers = st.lists(st.integers(0, 40), min_size=3, max_size=4)
texts = st.builds(
    lambda release, post: ".".join(map(str, release)) + ("" if post is None else f".post{post}"),
    numbers,
    st.none() | st.integers(0, 9),
)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(texts, texts)
def test_order_and_equality_are_those_of_the_packaging_library(left: str, right: str) -> None:
    ours = parse(left), parse(right)
    theirs = ReferenceVersion(left), ReferenceVersion(right)
    assert (ours[0] < ours[1]) == (theirs[0] < theirs[1])
    assert (ours[0] == ours[1]) == (theirs[0] == theirs[1])
    assert ours[0] != ours[1] or hash(ours[0]) == hash(ours[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v0.18.0", "0.18.0"),
        ("0.18", "0.18.0"),
        (" 0.18.0+cu128 ", "0.18.0"),
        ("0.10.1.1", "0.10.1.1"),
        ("0.6.1.post2", "0.6.1.post2"),
    ],
)
def test_a_version_is_read_as_people_write_it(text: str, expected: str) -> None:
    assert str(parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "latest", "0", "18", "0.18.x", "0.18.0; rm -rf", "0..1", "0.18.0 0.19.0", "9" * 400]
)
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UnknownVersion, match="not a version"):
        parse(text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(max_size=30))
def test_any_text_gives_a_version_or_the_error(text: str) -> None:
    try:
        found, note = resolve("vllm", text)
    except UnknownVersion:
        return
    assert found in versions("vllm")
    assert note is None or str(found) in note


def test_every_release_from_0_6_0_to_0_33_0_has_a_table() -> None:
    known = versions("vllm")
    assert list(known) == sorted(known)
    assert (str(known[0]), str(known[-1])) == ("0.6.0", "0.33.0")
    assert len(known) == 66
    assert {f"0.{minor}.0" for minor in range(6, 34)} <= set(map(str, known))
    assert {"0.6.1.post2", "0.8.5.post1", "0.9.0.1", "0.10.1.1", "0.15.1", "0.27.1"} <= set(map(str, known))


def test_without_a_version_the_newest_answers() -> None:
    assert resolve("vllm", None) == (versions("vllm")[-1], None)


@pytest.mark.parametrize(
    ("asked", "answers"),
    [("0.18.7", "0.18.1"), ("0.6.1.post9", "0.6.1.post2"), ("0.10.1.3", "0.10.1.1"), ("0.33.2", "0.33.0")],
)
def test_an_unlisted_patch_takes_the_nearest_lower_one_and_says_so(asked: str, answers: str) -> None:
    found, note = resolve("vllm", asked)
    assert str(found) == answers
    assert note is not None
    assert asked in note
    assert answers in note


def test_a_pre_release_takes_its_final_release() -> None:
    found, note = resolve("vllm", "0.18.0rc1")
    assert str(found) == "0.18.0"
    assert note is not None
    assert parse("0.18.0rc1") < parse("0.18.0")


@pytest.mark.parametrize("text", ["0.34.0", "1.0.0", "0.5.5", "0.0.1", "0.34.0rc1", "0.33.1rc1"])
def test_a_release_that_is_not_known_is_refused_rather_than_guessed(text: str) -> None:
    with pytest.raises(UnknownVersion, match=r"newest|oldest|nearest"):
        resolve("vllm", text)


@pytest.mark.parametrize("engine", ["sglang", "", "../vllm", "vllm/.."])
def test_an_engine_without_tables_is_refused(engine: str) -> None:
    with pytest.raises(UnknownVersion, match="no tables"):
        versions(engine)

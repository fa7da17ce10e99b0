"""Stop strings, whatever the text is cut into."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.serve.text.stops import StopStrings, _failures

LETTERS = st.text(alphabet="abc", max_size=24)


def by_character(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the first character at which some stop string is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = complete[0]
            return text[: end - len(stop)], stop
    return text, None


def test_a_stop_string_may_begin_where_none_may_end() -> None:
    checker = StopStrings(["abab"])
    assert checker.push("xababa", may_match=False) == "xab"
    assert checker.push("by") == ""
    assert checker.matched == "abab"


def test_the_first_one_given_wins_at_the_same_character() -> None:
    assert in_pieces(["xab"], ["b", "ab"]) == (["xa"], "b")
    assert in_pieces(["xab"], ["ab", "b"]) == (["x"], "ab")


def in_pieces(pieces: list[str], stops: list[str], keep: bool = False) -> tuple[list[str], str | None]:
    checker = StopStrings(stops)
    out: list[str] = []
    for piece in pieces:
        out.append(checker.push(piece, keep))
        if checker.matched is not None:
            return out, checker.matched
    return [*out, checker.finish()], None


@given(st.lists(LETTERS, max_size=8), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
@settings(max_examples=400, derandomize=True, deadline=None)
def test_pieces_do_not_matter(pieces: list[str], stops: list[str]) -> None:
    out, matched = in_pieces(pieces, stops)
    expected, stop = by_character("".join(pieces), stops)
    assert "".join(out) == expected
    assert matched == stop


def test_nothing_of_a_stop_string_goes_out_early() -> None:
    checker = StopStrings(["</end>"])
    assert checker.push("Hi <") == "Hi "
    assert checker.push("/en") == ""
    assert checker.push("tity") == "</entity"
    assert checker.push("</end") == ""
    assert checker.push(">more") == ""
    assert checker.matched == "</end>"


def test_only_a_possible_beginning_is_held() -> None:
    checker = StopStrings(["a long stop string"])
    assert checker.push("nothing of the kind") == "nothing of the kind"


def test_stop_string_can_be_kept() -> None:
    assert in_pieces(["one S", "TOP two"], ["STOP"], keep=True) == (["one ", "STOP"], "STOP")


def test_no_character_costs_many_tries() -> None:
    """Where a long match breaks off, all shorter ones that break off at the same character are passed over."""
    for stop in ("a" * 1000 + "q", "ab" * 500 + "q", "aab" * 333 + "q"):
        failures = _failures(stop)
        for length in range(len(stop)):
            tries = 0
            while length:
                length, tries = failures[length], tries + 1
            assert tries <= 16  # logarithmic in the length

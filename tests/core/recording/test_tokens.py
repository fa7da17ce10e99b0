from __future__ import annotations

from typing import Any

from camshaft.core.recording.tokens import RecordedTokens


def lines(*sequences: tuple[str, str | None, int, list[int]]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for seq, (name, fork_of, length, blocks) in enumerate(sequences):
        told.append({"type": "add", "seq": seq, "id": name, "fork_of": fork_of, "input_tokens": length})
        told.append({"type": "request", "seq": seq, "hash_ids": blocks})
    return told


def test_equal_blocks_have_equal_tokens_and_others_none() -> None:
    tokens = RecordedTokens(lines(("a", None, 8, [5, 6]), ("b", None, 9, [5, 7])), block_size=4)
    first, second = tokens.prompt(0, 8).tolist(), tokens.prompt(1, 9).tolist()
    assert first[:4] == second[:4]
    assert not set(first[4:]) & set(second[4:])
    assert len(set(second)) == 9


def test_choices_of_equal_prompts_that_were_drawn_crosswise() -> None:
    """Each prompt ends within its second block, which the one fills as the sibling of the other does."""
    crossed = lines(
        ("a", None, 6, [5, 6]), ("a1", "a", 6, [5, 7]), ("b", None, 6, [5, 7]), ("b1", "b", 6, [5, 6])
    )
    tokens = RecordedTokens(crossed, block_size=4)
    a, a1, b, b1 = (tokens.prompt(seq, 8).tolist() for seq in range(4))
    assert a == b1
    assert b == a1
    assert a[:6] == b[:6]
    assert not set(a[6:]) & set(b[6:])


def test_a_first_that_left_early_has_the_tokens_that_the_others_found() -> None:
    early = lines(("a", None, 6, []), ("a1", "a", 6, [5, 7]), ("later", None, 8, [5, 7]))
    tokens = RecordedTokens(early, block_size=4)
    assert tokens.prompt(0, 6).tolist() == tokens.prompt(2, 8).tolist()[:6]

"""Tokens to text, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_support import write_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from camshaft.core.errors import ModelError
from camshaft.core.serve.text.detokenize import (
    REPLACEMENT,
    ByteDetokenizer,
    Detokenizer,
    TokenText,
    WindowDetokenizer,
    token_bytes,
)
from camshaft.core.tokenizer import Tokenizer

SAMPLES = ["naïve café", "日本語のテキスト", "🚀👩‍👩‍👧 flags 🇸🇰", "plain", "混ぜ mix 🎉!", "\n\t tabs"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def both(tokenizer: Tokenizer, skip: bool = True) -> list[Detokenizer]:
    tables = token_bytes(tokenizer.backend)
    assert tables is not None
    return [ByteDetokenizer(tables[1 if skip else 0]), WindowDetokenizer(tokenizer, [], skip)]


@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_are_whole_characters_and_add_up(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    for detokenizer in both(tokenizer):
        pieces = [detokenizer.push(token) for token in ids]
        assert not any(REPLACEMENT in piece for piece in pieces)
        assert "".join(pieces) + detokenizer.finish() == text


@given(st.text(max_size=30))
@settings(max_examples=150, derandomize=True, deadline=None)
def test_any_text_survives(text: str) -> None:
    tokenizer = _bytes_only()
    text = text.encode("utf-8", "ignore").decode()
    for detokenizer in both(tokenizer):  # type: ignore[arg-type]
        ids = tokenizer.backend.encode(text).ids
        got = "".join(detokenizer.push(token) for token in ids) + detokenizer.finish()
        assert got == text


@given(st.lists(st.integers(0, 255), max_size=24))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_any_bytes_agree_with_the_whole_decode(ids: list[int]) -> None:
    """Up to an unfinished character at the end, which is dropped."""
    tokenizer = _bytes_only()
    tables = token_bytes(tokenizer.backend)
    assert tables is not None
    detokenizer = ByteDetokenizer(tables[0])
    got = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    assert whole.startswith(got)
    assert set(whole[len(got) :]) <= {REPLACEMENT}


@pytest.mark.parametrize("text", ["🚀", "é", "日"])
def test_half_a_character_at_the_end_is_dropped(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode("ok" + text)[:-1]
    for detokenizer in both(tokenizer):
        got = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
        assert got == "ok"


def test_special_tokens_are_shown_only_if_wanted(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("hi"), tokenizer.eos_token_ids[0]]
    for skip, expected in ((True, "hi"), (False, "hi<|end|>")):
        for detokenizer in both(tokenizer, skip):
            assert "".join(map(detokenizer.push, ids)) + detokenizer.finish() == expected


def test_spaces_of_a_metaspace_vocabulary(tmp_path: Path) -> None:
    """Such a decoder strips the first space, so a continuation must know what came before."""
    vocab = {"▁Hello": 0, "▁world": 1, "!": 2, "▁again": 3, "<unk>": 4}
    backend = Backend(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()

    class Wrapped:
        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
            return backend.decode(ids, skip_special_tokens=skip_special_tokens)

    assert token_bytes(backend) is None
    detokenizer = WindowDetokenizer(Wrapped(), [0], True)  # type: ignore[arg-type]
    assert [detokenizer.push(token) for token in (1, 2, 3)] == [" world", "!", " again"]


_WORDS = ["▁the", "▁", "a", "é", "ing", "\n"]
_SPECIAL = "</s>"


class _ByteFallback:
    """As Llama 2's, Mistral's and Gemma's: what is no word of the vocabulary is spelt in bytes."""

    def __init__(self, strips: bool) -> None:
        vocab = ["<unk>", _SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS]
        self.ids = {token: place for place, token in enumerate(vocab)}
        self.backend = Backend(models.BPE(self.ids, [], unk_token="<unk>", byte_fallback=True))
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        self.backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
        self.backend.add_special_tokens([_SPECIAL])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.spell(list(text))

    def spell(self, pieces: list[str]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            known = self.ids.get(piece)
            ids += [self.ids[f"<0x{byte:02X}>"] for byte in piece.encode()] if known is None else [known]
        return ids


@pytest.mark.parametrize("strips", [False, True])
def test_the_text_of_one_token_of_a_vocabulary_with_bytes(strips: bool) -> None:
    tokenizer = _ByteFallback(strips)
    texts = TokenText(tokenizer)
    assert [texts.text_of(tokenizer.ids[word]) for word in ("▁the", "▁", "ing", _SPECIAL)] == [
        " the",
        " ",
        "ing",
        _SPECIAL,
    ]
    assert [texts.bytes_of(token) for token in tokenizer.spell(["日"])] == [b"\xe6", b"\x97", b"\xa5"]


_PIECES = st.lists(st.sampled_from([*_WORDS, _SPECIAL, "😀", "日", "ß", "🎉"]), max_size=12)


@given(_PIECES, _PIECES, st.booleans(), st.booleans())
@settings(max_examples=400, derandomize=True, deadline=None)
def test_characters_spelt_in_bytes(prompt: list[str], pieces: list[str], strips: bool, skip: bool) -> None:
    tokenizer = _ByteFallback(strips)
    before, ids = tokenizer.spell(["a", *prompt]), tokenizer.spell(pieces)
    detokenizer = WindowDetokenizer(tokenizer, before, skip)
    told = [detokenizer.push(token) for token in ids]
    whole = tokenizer.decode(before + ids, skip)
    assert not any(REPLACEMENT in piece for piece in told)
    assert tokenizer.decode(before, skip) + "".join(told) + detokenizer.finish() == whole


def test_an_id_beyond_any_vocabulary_is_refused() -> None:
    """A table by id would take all memory."""
    backend = Backend(models.WordLevel({"Hello": 2**31}, unk_token="Hello"))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(ModelError, match="2147483648"):
        token_bytes(backend)


def test_token_text_knows_bytes(tokenizer: Tokenizer) -> None:
    texts = TokenText(tokenizer)
    ids = tokenizer.encode("🚀")
    assert b"".join(map(texts.bytes_of, ids)) == "🚀".encode()
    assert texts.text_of(tokenizer.eos_token_ids[0]) == "<|end|>"
    assert texts.bytes_of(10**6) == b""


class _BytesOnly:
    """256 tokens, one for each byte."""

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.backend = Backend(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend.decoder = decoders.ByteLevel()

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)


_SHARED = _BytesOnly()


def _bytes_only() -> _BytesOnly:
    return _SHARED

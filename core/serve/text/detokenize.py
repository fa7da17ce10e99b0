"""Tokens to text, one at a time, at a cost that does not grow with the text.

A character whose bytes are spread over tokens is held until it is whole; one that never becomes whole is
dropped at the end, so that no half of a character ever reaches a client.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any, Protocol

from ...errors import ModelError

REPLACEMENT = "\ufffd"
MAX_TOKEN_ID = 1 << 24
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# Tokens after which the window gives up waiting for a whole character: bytes that never were UTF-8.
_MAX_HELD_TOKENS = 8
# Prompt tokens that the window starts from, so that the first token keeps its leading space.
_CONTEXT_TOKENS = 6
_MAX_CHARACTER_TOKENS = 4  # one a byte


class Tokenizer(Protocol):
    """What detokenising needs of a tokenizer."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class Detokenizer(Protocol):
    """The text of one sequence as it grows."""

    def push(self, token: int) -> str:
        """Text that became certain with this token; often empty."""
        ...

    def finish(self) -> str:
        """Text still held that stands without what would have followed."""
        ...


class ByteDetokenizer:
    """Exact and O(1) a token, for byte-level vocabularies: a table of bytes and a UTF-8 decoder."""

    __slots__ = ("_decoder", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._table[token]) if token < len(self._table) else ""

    def finish(self) -> str:
        return ""


class WindowDetokenizer:
    """For any tokenizer: decodes a short window and takes what is new.

    The window begins with the tokens told last, or the end of the prompt: a token's text depends on what stands
    before it, and a vocabulary that falls back to bytes decodes a whole run of them at once, to nothing but
    U+FFFD unless all of it is UTF-8.
    """

    __slots__ = ("_before", "_ids", "_read", "_skip", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        text = ""
        for size in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _MAX_CHARACTER_TOKENS):
            self._ids = list(context[-size:])
            text = self._decode(self._ids)
            if not text.startswith(REPLACEMENT):
                break  # from a whole character on
        self._before = text.rstrip(REPLACEMENT)  # is out already
        self._read = len(self._ids)

    def push(self, token: int) -> str:
        self._ids.append(token)
        after = self._decode(self._ids)
        if after.endswith(REPLACEMENT) and len(self._ids) - self._read <= _MAX_HELD_TOKENS:
            return ""
        text = self._gained(after)
        if after == self._before and self._read:  # such as a special token: it is no context for others
            del self._ids[self._read :]
        else:
            del self._ids[: self._read]
            self._before = self._decode(self._ids)
        self._read = len(self._ids)
        return text

    def finish(self) -> str:
        return self._gained(self._decode(self._ids)).rstrip(REPLACEMENT)

    def _gained(self, after: str) -> str:
        """What `after` has beyond the text that is out. Where bytes have spoilt that, the new tokens stand alone."""
        if after.startswith(self._before):
            return after[len(self._before) :]
        return self._decode(self._ids[self._read :])

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)


def _byte_of_char() -> dict[str, int]:
    """GPT-2's map of printable characters to bytes: printable Latin-1 stands for itself, the rest follow 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


def token_bytes(backend: Any) -> tuple[list[bytes], list[bytes]] | None:
    """Bytes of every id, with special tokens as text and with them empty; None if not byte-level.

    `backend` is a `tokenizers.Tokenizer`. As its ByteLevel decoder does, a token with a character outside
    the map stands for its own UTF-8 bytes. Raises ModelError for an id beyond MAX_TOKEN_ID.
    """
    from tokenizers.decoders import ByteLevel

    if backend is None or not isinstance(backend.decoder, ByteLevel):
        return None
    chars = _byte_of_char()
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    highest = max(vocab.values(), default=-1)
    if highest > MAX_TOKEN_ID:
        raise ModelError(f"tokenizer.json: a token has the id {highest}; no vocabulary is that large")
    table = [b""] * (highest + 1)
    for text, token in vocab.items():
        try:
            table[token] = bytes([chars[char] for char in text])
        except KeyError:
            table[token] = text.encode()
    hidden = list(table)
    for token, added in backend.get_added_tokens_decoder().items():
        if added.special:
            hidden[token] = b""
    return table, hidden


class TokenText:
    """What the server asks about the text of tokens; one per model."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tables = token_bytes(getattr(tokenizer, "backend", None))
        self._bytes: dict[int, bytes] = {}  # of tokens that were asked for, where there is no table

    def detokenizer(self, prompt: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """A fresh detokeniser for a sequence that continues `prompt`."""
        if self._tables is not None:
            return ByteDetokenizer(self._tables[1 if skip_special_tokens else 0])
        return WindowDetokenizer(self._tokenizer, prompt, skip_special_tokens)

    def bytes_of(self, token: int) -> bytes:
        """Bytes of one token by itself, special tokens as their text."""
        if self._tables is not None:
            table = self._tables[0]
            return table[token] if 0 <= token < len(table) else b""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._read_alone(token)
        return found

    def _read_alone(self, token: int) -> bytes:
        """As in the middle of a text, where a decoder strips no space; a byte that is a token is that byte."""
        byte = _BYTE_TOKEN.fullmatch(self._tokenizer.backend.id_to_token(token) or "")
        if byte is not None:
            return bytes.fromhex(byte[1])
        before: list[int] = self._tokenizer.encode(".", add_special_tokens=False)
        text, more = (
            self._tokenizer.decode(ids, skip_special_tokens=False) for ids in (before, [*before, token])
        )
        return more[len(text) :].encode()

    def text_of(self, token: int) -> str:
        """Text of one token by itself; bytes that are no UTF-8 become U+FFFD."""
        return self.bytes_of(token).decode("utf-8", "replace")

    @property
    def longest_token_chars(self) -> int | None:
        """Most characters one token can stand for; None if unknown."""
        return max(map(len, self._tables[0]), default=1) if self._tables is not None else None

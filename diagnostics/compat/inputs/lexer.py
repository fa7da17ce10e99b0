"""Cuts shell text into simple commands of words, whose pieces are literal, a variable, or something unknowable.

Every character keeps its offset in the source. Nothing is expanded here.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal

import msgspec

# A character of an expanded word, and its offset in the source.
Char = tuple[str, int]
OPERATORS = "\n;&|()"
# What stands before the end of a line that goes on: in a Unix shell, in PowerShell, in a Windows prompt.
CONTINUATIONS = "\\`^"
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\+?)=")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!]")
# What documentation writes where a reader is to put a value (`--port <PORT>`); a shell would redirect.
PLACEHOLDER = re.compile(r"<[A-Za-z][\w .:/-]{0,60}>")
# Tags of templates (Helm, Jinja): those that only steer leave blanks, the others a text nobody can know.
TEMPLATE = re.compile(r"\{\{.{0,1000}?\}\}|\{%.{0,1000}?%\}", re.S)
STEERS = re.compile(r"\{%|\{\{-?\s*(?:if|else|end|range|with|define|block|break|continue|/\*|\$\w+\s*:?=)")
OPENS = re.compile(r"\{[{%]-?\s*(?:if|range|with|for|block|define)\b")
CLOSES = re.compile(r"\{[{%]-?\s*end")
ELSE = re.compile(r"\{[{%]-?\s*(?:else|elif)\b")
BRACED = re.compile(r"(!?)([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!])(\[[^\]]*\])?(?::?([-=+?])(.*))?", re.S)


class Piece(msgspec.Struct):
    """A part of a word: literal characters, a variable, or something unknowable."""

    kind: Literal["text", "variable", "opaque"]
    chars: list[Char]
    name: str = ""
    default: list[Char] | None = None
    quoted: bool = False


class RawWord(msgspec.Struct):
    """A word before expansion; `array` holds the items of `NAME=(...)`, `before` the operators in front of a command's
    first word, back to the command before it."""

    pieces: list[Piece]
    start: int
    end: int
    array: list[RawWord] | None = None
    before: str = ""

    @property
    def literal(self) -> str:
        """The characters of its leading literal piece (where an assignment's name stands)."""
        first = self.pieces[0] if self.pieces else None
        return "".join(c for c, _ in first.chars) if first and first.kind == "text" else ""


class _Lexer:
    """Cuts a list of characters into simple commands."""

    def __init__(self, chars: list[Char]) -> None:
        self.chars = chars
        self.at = 0
        self.commands: list[list[RawWord]] = [[]]
        self.operators = [""]  # in front of each of them
        self.heredocs: list[str] = []
        self.bodies: list[list[Char]] = []
        self.open_quote: int | None = None

    @cached_property
    def text(self) -> str:
        """All characters, one for each of `chars`."""
        return "".join(char for char, _ in self.chars)

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.chars[index][0] if index < len(self.chars) else ""

    def offset(self, index: int) -> int:
        if not self.chars:
            return 0
        return self.chars[index][1] if index < len(self.chars) else self.chars[-1][1] + 1

    def run(self) -> list[list[RawWord]]:
        while self.at < len(self.chars):
            char = self.peek()
            if length := self._continuation():
                self.at += length
            elif char in " \t\r":
                self.at += 1
            elif char == "{" and self._steers():
                self.at += self._template()
            elif char == "#":
                self._skip_line()
            elif char in OPERATORS:
                self.at += 1
                self.commands.append([])
                self.operators.append(char)
                if char == "\n":
                    self._skip_heredocs()
            elif char == "<" and self._placeholder(alone=True):
                self.commands[-1].append(self._word())
            elif char in "<>" or (char.isdigit() and self.peek(1) in ("<", ">")):
                self._redirection()
            else:
                self.commands[-1].append(self._word())
        before = ""
        for command, operator in zip(self.commands, self.operators, strict=True):
            before += operator
            if command:
                command[0].before, before = before, ""
        return [command for command in self.commands if command]

    def _continuation(self) -> int:
        """How many characters from here on join this line to the next."""
        if self.peek() not in CONTINUATIONS or self.peek(1) not in ("\n", "\r"):
            return 0
        return 3 if self.peek(1) == "\r" and self.peek(2) == "\n" else 2

    def _skip_line(self) -> None:
        while self.at < len(self.chars) and self.peek() != "\n":
            self.at += 1

    def _placeholder(self, alone: bool = False) -> int:
        """How many characters from here on are a placeholder; `alone` asks for a word that is nothing else."""
        ahead = self._ahead(64)
        match = PLACEHOLDER.match(ahead)
        if match is None or (alone and ahead[match.end() :][:1] not in ("", *" \t\r\n\\;&|:/,")):
            return 0
        return match.end()

    def _template(self) -> int:
        """How many characters from here on are a template's tag."""
        if self.peek(1) not in ("{", "%"):
            return 0
        ahead = self._ahead(1000)
        match = TEMPLATE.match(ahead)
        if match is None:
            return 0
        return self._other_branch() if ELSE.match(ahead) else match.end()

    def _ahead(self, count: int) -> str:
        """So many characters from here on."""
        return self.text[self.at : self.at + count]

    def _other_branch(self) -> int:
        """How long a template's `else` is, up to the `end` that closes it: the branch in front of it is read."""
        count, rest = 1000, len(self.chars) - self.at
        length, closed = _to_end(self._ahead(count))
        while not closed and count < rest:
            count *= 4  # a fixed factor, so that many long branches cost no square of their length
            length, closed = _to_end(self._ahead(count))
        return length

    def _steers(self) -> bool:
        """Whether a template's tag begins here that leaves no text."""
        length = self._template()
        return bool(STEERS.match(self._ahead(length)))

    def _redirection(self) -> None:
        operator = ""
        while self.peek() and (self.peek() in "<>&" or self.peek().isdigit()):
            operator += self.peek()
            self.at += 1
        if self.peek() == "(":  # process substitution: an operand nobody can know
            return
        while self.peek() in (" ", "\t"):
            self.at += 1
        if self.peek() and self.peek() not in OPERATORS:
            target = self._word()
            if operator.endswith("<<"):
                self.heredocs.append(
                    "".join(c for piece in target.pieces for c, _ in piece.chars).lstrip("-")
                )

    def _skip_heredocs(self) -> None:
        for marker in self.heredocs:
            first = begin = self.at
            while self.at < len(self.chars):
                begin = self.at
                self._skip_line()
                line = "".join(c for c, _ in self.chars[begin : self.at]).strip()
                self.at += 1
                if line == marker:
                    break
            self.bodies.append(self.chars[first:begin])
        self.heredocs = []

    def _word(self) -> RawWord:
        begin = self.at
        word = RawWord([], self.offset(begin), 0)
        while self.at < len(self.chars):
            char = self.peek()
            if char == "(" and ASSIGNMENT.fullmatch(word.literal) and len(word.pieces) == 1:
                word.array = self._array()
                break
            if char == "{" and self._steers():
                break
            length = self._placeholder() if char == "<" else self._template() if char == "{" else 0
            if length:
                word.pieces.append(Piece("opaque", self.chars[self.at : self.at + length]))
                self.at += length
                continue
            if char in " \t\r<>" or char in OPERATORS:
                break
            self._piece(word, quoted=False)
        word.end = self.offset(self.at - 1) + 1 if self.at > begin else word.start
        if self.at == begin:  # an operator where a word was expected
            self.at += 1
        return word

    def _array(self) -> list[RawWord]:
        inner = _Lexer(self.chars)
        inner.at = self.at + 1
        items: list[RawWord] = []
        while inner.at < len(inner.chars) and inner.peek() != ")":
            char = inner.peek()
            if length := inner._continuation():
                inner.at += length
            elif char in " \t\r\n":
                inner.at += 1
            elif char == "#":
                inner._skip_line()
            else:
                items.append(inner._word())
        self.at = inner.at + 1
        return items

    def _piece(self, word: RawWord, quoted: bool) -> None:
        char = self.peek()
        if char in "'\"" and not quoted:
            begin = self.at
            self.at += 1
            while self.at < len(self.chars) and self.peek() != char:
                if char == "'":
                    self._literal(word, True)
                else:
                    self._piece(word, quoted=True)
            if self.at >= len(self.chars):
                self.open_quote = self.offset(begin)
            self.at += 1
            self._mark_quoted(word)
        elif char == "\\":
            self._escape(word, quoted)
        elif char == "$":
            self._dollar(word, quoted)
        elif char == "`":
            self._opaque_until("`", word, quoted)
        elif char == "{" and quoted and (length := self._template()):
            word.pieces.append(Piece("opaque", self.chars[self.at : self.at + length], quoted=True))
            self.at += length
        else:
            self._literal(word, quoted)

    @staticmethod
    def _mark_quoted(word: RawWord) -> None:
        if not word.pieces:  # an empty quoted word is still a word
            word.pieces.append(Piece("text", [], quoted=True))

    def _literal(self, word: RawWord, quoted: bool) -> None:
        char = self.chars[self.at]
        self.at += 1
        last = word.pieces[-1] if word.pieces else None
        if last is not None and last.kind == "text" and last.quoted == quoted:
            last.chars.append(char)
        else:
            word.pieces.append(Piece("text", [char], quoted=quoted))

    def _escape(self, word: RawWord, quoted: bool) -> None:
        following = self.peek(1)
        if following == "\n":
            self.at += 2
        elif not following or (quoted and following not in '"\\$`'):
            self._literal(word, quoted)
        else:
            self.at += 1
            self._literal(word, True)

    def _opaque_until(self, closing: str, word: RawWord, quoted: bool) -> None:
        begin, depth = self.at, 0
        while self.at < len(self.chars):
            char = self.peek()
            self.at += 1
            if closing == ")" and char == "(":
                depth += 1
            elif char == closing and self.at - 1 > begin:
                depth -= 1
                if depth <= 0:
                    break
        word.pieces.append(Piece("opaque", self.chars[begin : self.at], quoted=quoted))

    def _dollar(self, word: RawWord, quoted: bool) -> None:
        following = self.peek(1)
        if following == "(":
            self._opaque_until(")", word, quoted)
        elif following == "{":
            begin = self.at
            self._skip_braced(quoted)
            self._braced(word, self.chars[begin : self.at], quoted)
        elif following in ("'", '"') and not quoted:
            self.at += 1
            self._piece(word, quoted)
        else:
            rest = "".join(c for c, _ in self.chars[self.at + 1 : self.at + 65])
            match = VARIABLE.match(rest)
            if match is None:
                self._literal(word, quoted)
                return
            chars = self.chars[self.at : self.at + 1 + match.end()]
            self.at += 1 + match.end()
            word.pieces.append(Piece("variable", chars, match.group(), None, quoted))

    def _skip_braced(self, quoted: bool) -> None:
        """Step over `${...}`, the quotes and variables inside included; in double quotes a single one is a letter."""
        depth, quote = 0, ""
        quotes = '"' if quoted else "'\""
        while self.at < len(self.chars):
            char = self.peek()
            self.at += 1
            if char == "\\":
                self.at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in quotes:
                quote = char
            elif char == "$" and self.peek() == "{":
                depth += 1
            elif char == "}":
                depth -= 1
                if not depth:
                    return

    @staticmethod
    def _braced(word: RawWord, chars: list[Char], quoted: bool) -> None:
        body = "".join(c for c, _ in chars[2:-1])
        match = BRACED.fullmatch(body)
        if match is None or match.group(1) or match.group(4) in ("+", "?"):
            name = match.group(2) if match and match.group(4) == "?" else ""
            word.pieces.append(Piece("variable" if name else "opaque", chars, name, None, quoted))
            return
        default = None
        if match.group(4) and match.group(5):  # an empty default says that it may be given
            begin = 2 + match.start(5)
            default = _unquoted(chars[begin : begin + len(match.group(5))], quoted)
        word.pieces.append(Piece("variable", chars, match.group(2), default, quoted))


def _to_end(text: str) -> tuple[int, bool]:
    """How much of a text a template's `else` takes at its beginning, and whether its `end` stands there."""
    depth = end = 0
    for match in TEMPLATE.finditer(text):
        end = match.end()
        depth += bool(OPENS.match(match.group())) - bool(CLOSES.match(match.group()))
        if depth < 0:
            return end, True
    return end, False


def _unquoted(chars: list[Char], quoted: bool) -> list[Char] | None:
    """The default of a variable without its own quotes; None where only a run could tell it."""
    lexer = _Lexer(chars)
    word = RawWord([], 0, 0)
    while lexer.at < len(chars):
        lexer._piece(word, quoted and lexer.peek() != '"')
    if any(piece.kind != "text" for piece in word.pieces):
        return None
    return [char for piece in word.pieces for char in piece.chars]


def lex(chars: list[Char]) -> list[list[RawWord]]:
    """The simple commands of a shell text, in order; operators, comments and here-documents are gone."""
    return _Lexer(chars).run()


def open_quote(chars: list[Char]) -> int | None:
    """The offset of a quote that is never closed, or None."""
    lexer = _Lexer(chars)
    lexer.run()
    return lexer.open_quote


def here_documents(chars: list[Char]) -> list[list[Char]]:
    """The texts of a script's here-documents (`cat > run.sh <<EOF`)."""
    lexer = _Lexer(chars)
    lexer.run()
    return lexer.bodies


def characters(text: str, base: int = 0) -> list[Char]:
    """The text as characters with their offsets, the first at `base`."""
    return [(char, base + index) for index, char in enumerate(text)]

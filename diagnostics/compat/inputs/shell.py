"""A reader of shell text: words with their places, quotes, continuations, variables and assignments.

It executes nothing. What only a running shell could know (command substitutions, variables set
elsewhere) becomes an opaque word.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from .base import EnvSetting, Source, Word

# A character of an expanded word, and its offset in the source.
Char = tuple[str, int]
OPERATORS = "\n;&|()"
# What stands before the end of a line that goes on: in a Unix shell, in PowerShell, in a Windows prompt.
CONTINUATIONS = "\\`^"
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\+?)=")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!]")
# What documentation writes where a reader is to put a value (`--port <PORT>`); a shell would redirect.
PLACEHOLDER = re.compile(r"<[A-Za-z][\w .:/-]{0,60}>")
BRACED = re.compile(r"(!?)([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!])(\[[^\]]*\])?(?::?([-=+?])(.*))?", re.S)


class Piece(msgspec.Struct):
    """A part of a word: literal characters, a variable, or something unknowable."""

    kind: Literal["text", "variable", "opaque"]
    chars: list[Char]
    name: str = ""
    default: list[Char] | None = None
    quoted: bool = False


class RawWord(msgspec.Struct):
    """A word before expansion; `array` holds the items of `NAME=(...)`."""

    pieces: list[Piece]
    start: int
    end: int
    array: list[RawWord] | None = None

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
        self.heredocs: list[str] = []
        self.bodies: list[list[Char]] = []

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
            if char in CONTINUATIONS and self.peek(1) in ("\n", "\r"):
                self.at += 3 if self.peek(1) == "\r" and self.peek(2) == "\n" else 2
            elif char in " \t\r":
                self.at += 1
            elif char == "#":
                self._skip_line()
            elif char in OPERATORS:
                self.at += 1
                self.commands.append([])
                if char == "\n":
                    self._skip_heredocs()
            elif char == "<" and self._placeholder(alone=True):
                self.commands[-1].append(self._word())
            elif char in "<>" or (char.isdigit() and self.peek(1) in ("<", ">")):
                self._redirection()
            else:
                self.commands[-1].append(self._word())
        return [command for command in self.commands if command]

    def _skip_line(self) -> None:
        while self.at < len(self.chars) and self.peek() != "\n":
            self.at += 1

    def _placeholder(self, alone: bool = False) -> int:
        """How many characters from here on are a placeholder; `alone` asks for a word that is nothing else."""
        ahead = "".join(c for c, _ in self.chars[self.at : self.at + 64])
        match = PLACEHOLDER.match(ahead)
        if match is None or (alone and ahead[match.end() :][:1] not in ("", *" \t\r\n\\;&|:/,")):
            return 0
        return match.end()

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
            length = self._placeholder() if char == "<" else 0
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
            if char == "\\" and inner.peek(1) == "\n":
                inner.at += 2
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
        if char == "'" and not quoted:
            self.at += 1
            while self.at < len(self.chars) and self.peek() != "'":
                self._literal(word, True)
            self.at += 1
            self._mark_quoted(word)
        elif char == '"' and not quoted:
            self.at += 1
            while self.at < len(self.chars) and self.peek() != '"':
                self._piece(word, quoted=True)
            self.at += 1
            self._mark_quoted(word)
        elif char == "\\":
            self._escape(word, quoted)
        elif char == "$":
            self._dollar(word, quoted)
        elif char == "`":
            self._opaque_until("`", word, quoted)
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
            while self.at < len(self.chars) and self.peek() != "}":
                self.at += 1
            self.at += 1
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

    @staticmethod
    def _braced(word: RawWord, chars: list[Char], quoted: bool) -> None:
        body = "".join(c for c, _ in chars[2:-1])
        match = BRACED.fullmatch(body)
        if match is None or match.group(1) or match.group(4) in ("+", "?"):
            name = match.group(2) if match and match.group(4) == "?" else ""
            word.pieces.append(Piece("variable" if name else "opaque", chars, name, None, quoted))
            return
        default = None
        if match.group(4):
            begin = 2 + match.start(5)
            default = chars[begin : begin + len(match.group(5))]
        word.pieces.append(Piece("variable", chars, match.group(2), default, quoted))


class Shell(msgspec.Struct):
    """What a shell script has set so far: its variables, arrays and exported names."""

    source: Source
    variables: dict[str, list[Char]] = {}
    arrays: dict[str, list[Word]] = {}
    exported: dict[str, EnvSetting] = {}
    export_all: bool = False

    def assign(self, word: RawWord, export: bool, begin: int | None = None) -> None:
        """Apply `NAME=value`, `NAME+=value` or `NAME=(items)`; `begin` is where its statement begins, if it is alone."""
        match = ASSIGNMENT.match(word.literal)
        if match is None:
            return
        name = match.group().rstrip("=").rstrip("+")
        if word.array is not None:
            items = [item for raw in word.array for item in self.expand(raw, style="expanded")]
            self.arrays[name] = (self.arrays.get(name, []) if match.group(1) else []) + items
            return
        chars, opaque = self._value(word, match.end())
        previous = self.variables.get(name, []) if match.group(1) else []
        if opaque:
            self.variables.pop(name, None)
        else:
            self.variables[name] = previous + chars
        if export or self.export_all or name in self.exported:
            value = None if opaque else "".join(c for c, _ in self.variables[name])
            start = word.start if begin is None else begin
            self.exported[name] = EnvSetting(
                name, value, self.source.place(word.start), self.source, start, word.end
            )

    def export(self, name: str, offset: int) -> None:
        """Mark a variable as seen by the commands that follow."""
        if name in self.variables:
            value = "".join(c for c, _ in self.variables[name])
            self.exported[name] = EnvSetting(name, value, self.source.place(offset))

    def setting(self, word: RawWord) -> EnvSetting | None:
        """`NAME=value` in front of a command, as the command would see it."""
        match = ASSIGNMENT.match(word.literal)
        if match is None or word.array is not None:
            return None
        chars, opaque = self._value(word, match.end())
        value = None if opaque else "".join(c for c, _ in chars)
        name, place = match.group().rstrip("=").rstrip("+"), self.source.place(word.start)
        return EnvSetting(name, value, place, self.source, word.start, word.end)

    def _value(self, word: RawWord, skip: int) -> tuple[list[Char], bool]:
        first = word.pieces[0]
        pieces = [Piece("text", first.chars[skip:], quoted=first.quoted), *word.pieces[1:]]
        chars: list[Char] = []
        opaque = False
        for piece in pieces:
            expanded = self._expand_piece(piece)
            opaque = opaque or expanded is None
            chars += expanded or []
        return chars, opaque

    def _expand_piece(self, piece: Piece) -> list[Char] | None:
        if piece.kind == "text":
            return piece.chars
        if piece.kind == "opaque":
            return None
        return self.variables.get(piece.name, piece.default)

    def expand(self, word: RawWord, style: Literal["shell", "item", "expanded"] = "shell") -> list[Word]:
        """The words that this raw word becomes: none, one, or several when a variable splits."""
        if len(word.pieces) == 1 and word.pieces[0].kind == "variable":
            name = word.pieces[0].name
            if name in self.arrays:
                return list(self.arrays[name])
        simple = all(piece.kind == "text" for piece in word.pieces)
        if simple:
            text = "".join(c for piece in word.pieces for c, _ in piece.chars)
            return [self._word(text, word.start, word.end, False, style)]
        return self._expand_split(word)

    def _expand_split(self, word: RawWord) -> list[Word]:
        fields: list[list[Char]] = [[]]
        opaque = [False]
        started = [False]
        for piece in word.pieces:
            expanded = self._expand_piece(piece)
            if expanded is None:
                fields[-1] += piece.chars
                opaque[-1] = started[-1] = True
                continue
            for char in expanded:
                if piece.kind == "variable" and not piece.quoted and char[0] in " \t\n":
                    if started[-1]:
                        fields.append([])
                        opaque.append(False)
                        started.append(False)
                    continue
                fields[-1].append(char)
                started[-1] = True
            if piece.quoted:
                started[-1] = True
        words = []
        for chars, is_opaque, is_started in zip(fields, opaque, started, strict=True):
            if not is_started:
                continue
            start, end = (chars[0][1], chars[-1][1] + 1) if chars else (word.start, word.end)
            inside = word.start <= start and end <= word.end
            if inside:
                start, end = word.start, word.end
            text = "".join(c for c, _ in chars)
            words.append(
                self._word(text, start, max(start, end), is_opaque, "shell" if inside else "expanded")
            )
        return words

    def _word(
        self, text: str, start: int, end: int, opaque: bool, style: Literal["shell", "item", "expanded"]
    ) -> Word:
        return Word(text, self.source.place(start), self.source, start, end, opaque, style)


def lex(chars: list[Char]) -> list[list[RawWord]]:
    """The simple commands of a shell text, in order; operators, comments and here-documents are gone."""
    return _Lexer(chars).run()


def here_documents(chars: list[Char]) -> list[list[Char]]:
    """The texts of a script's here-documents (`cat > run.sh <<EOF`)."""
    lexer = _Lexer(chars)
    lexer.run()
    return lexer.bodies


def characters(text: str, base: int = 0) -> list[Char]:
    """The text as characters with their offsets, the first at `base`."""
    return [(char, base + index) for index, char in enumerate(text)]

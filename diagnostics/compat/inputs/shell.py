"""A reader of shell text: words with their places, quotes, continuations, variables and assignments.

It executes nothing. What only a running shell could know (command substitutions, variables set
elsewhere) becomes an opaque word.
"""

from __future__ import annotations

import re

import msgspec

from .base import Block, EnvSetting, Source, Style, Word
from .lexer import ASSIGNMENT, Char, Piece, RawWord

# The value of a variable: literal text, and parts that only a run could tell.
Value = list[Piece]
# A longer value or array is taken for unknown: a few lines can double one without end.
MAX_CHARACTERS = 20_000
MAX_ITEMS = 2_000
OPTIONS = re.compile(r"(^|\s)-")
# What documentation writes for words that it leaves out.
OMITTED = ("...", "\N{HORIZONTAL ELLIPSIS}")
OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\(\)|[;&()\n]")
# The blocks of which only some runs give what they hold; the other kinds are loops, functions and subshells.
BRANCHES = frozenset({"if", "case", "test"})
# Which block a word of the shell's own enters, and which it leaves.
ENTERS = {"if": "if", "then": "if", "elif": "if", "else": "if", "case": "case", "do": "do", "{": "{"}
LEAVES = {"then": "if", "elif": "if", "else": "if", "fi": "if", "esac": "case", "done": "do", "}": "{"}


class Shell(msgspec.Struct):
    """What a shell script has set so far: its variables, arrays and exported names."""

    source: Source
    variables: dict[str, Value] = {}
    # Of each array its words, with where each was put into it.
    arrays: dict[str, list[tuple[int, Word]]] = {}
    exported: dict[str, EnvSetting] = {}
    export_all: bool = False
    # Whether the text is what another shell has expanded, so that a `$` in it stands for something unknown.
    expanded: bool = False
    # Every block met, those that are open, and what variables were inside the open `if` and `case`.
    blocks: list[Block] = []
    open: list[Block] = []
    branches: int = 0
    inside: dict[str, set[str | None]] = {}

    def keyword(self, text: str, offset: int) -> None:
        """Enter or leave a block. Behind a branch, a variable that may have one of several values is not known.

        One that holds options keeps the last ones, and one that only the branch sets keeps its value: each is worth
        checking, and stands where `is_conditional` says so.
        """
        if text in LEAVES:
            self._leave(LEAVES[text], offset)
        if text in ENTERS:
            self._enter(ENTERS[text], offset)
        if text in ("if", "case"):
            self.branches += 1
        elif text in ("fi", "esac") and self.branches:
            self.branches -= 1
            if self.branches:
                return
            for name, values in self.inside.items():
                if len(values) > 1 and not any(value and OPTIONS.search(value) for value in values):
                    self.variables.pop(name, None)
            self.inside = {}

    def operators(self, text: str, tests: bool, offset: int) -> None:
        """Enter and leave the blocks that operators open and close in front of a command at `offset`; `tests` says
        whether the command before them only looks at something."""
        found = OPERATOR.findall(text)
        follows = "&&" in found or "||" in found
        for operator in found:
            kinds = [block.kind for block in self.open]
            if operator.startswith((";;", ";&")):
                self._leave("case", offset)
                self._enter("case", offset)
            elif operator in (";", "&", "\n") and not follows:
                while self.open and self.open[-1].kind in ("test", "&&"):
                    self.open.pop().end = offset
            elif operator == "(":
                self._enter("(", offset)
            elif operator == ")" and "(" in kinds and "case" not in kinds[kinds.index("(") :]:
                self._leave("(", offset)
        if follows:
            self._enter("test" if tests else "&&", offset)

    def _enter(self, kind: str, offset: int) -> None:
        self.open.append(Block(kind, offset))
        self.blocks.append(self.open[-1])

    def _leave(self, kind: str, offset: int) -> None:
        """Close the innermost block of a kind, with what is open inside it."""
        while any(block.kind == kind for block in self.open):
            block = self.open.pop()
            block.end = offset
            if block.kind == kind:
                return

    def is_conditional(self, offset: int) -> bool:
        """Whether what stands there is in a branch that has been left."""
        return any(block.holds(offset) and block.closed for block in self.blocks if block.kind in BRANCHES)

    def assign(self, word: RawWord, export: bool, begin: int | None = None) -> None:
        """Apply `NAME=value`, `NAME+=value` or `NAME=(items)`; `begin` is where its statement begins, if it is alone."""
        match = ASSIGNMENT.match(word.literal)
        if match is None:
            return
        name = match.group().rstrip("=").rstrip("+")
        if word.array is not None:
            items = [(raw.start, item) for raw in word.array for item in self.expand(raw, style="array")]
            old = self.arrays.get(name, [])
            if not match.group(1):  # what another branch gives is worth checking too
                old = [item for item in old if self._is_beside(item[0])]
            self.arrays[name] = old + items
            if len(self.arrays[name]) > MAX_ITEMS:
                del self.arrays[name]
            return
        value = self._value(word, match.end())
        if self.branches:
            before: set[str | None] = {self._text(name)} if name in self.variables else set()
            self.inside.setdefault(name, before)
        if _is_opaque(value) and not any(_known(piece).strip() for piece in value):
            self.variables.pop(name, None)
        else:
            old = self.variables.get(name, [])
            if not match.group(1):
                old = [*old, Piece("text", [(" ", word.start)])] if self._is_alternative(old, value) else []
            self.variables[name] = old + value
            if sum(len(piece.chars) for piece in self.variables[name]) > MAX_CHARACTERS:
                del self.variables[name]
        if self.branches:
            self.inside[name].add(self._text(name) if name in self.variables else None)
        if export or self.export_all or name in self.exported:
            known = self.variables.get(name)
            text = None if known is None or _is_opaque(known) else self._text(name)
            start = word.start if begin is None else begin
            self.exported[name] = EnvSetting(
                name, text, self.source.place(word.start), self.source, start, word.end
            )

    def _is_beside(self, offset: int) -> bool:
        """Whether what stands there is in another branch than the one that is open."""
        return any(block.kind in BRANCHES for block in self.open) and self.is_conditional(offset)

    def _is_alternative(self, old: Value, new: Value) -> bool:
        """Whether two values are options that one branch and another give."""
        held = [char for piece in old for char in piece.chars]
        added = [char for piece in new for char in piece.chars]
        return bool(
            held
            and added
            and held[0][0] == added[0][0] == "-"
            and held[0] not in added
            and self._is_beside(held[0][1])
        )

    def _text(self, name: str) -> str:
        return "".join(char for piece in self.variables[name] for char, _ in piece.chars)

    def export(self, name: str, offset: int) -> None:
        """Mark a variable as seen by the commands that follow."""
        if name in self.variables:
            value = None if _is_opaque(self.variables[name]) else self._text(name)
            self.exported[name] = EnvSetting(name, value, self.source.place(offset))

    def setting(self, word: RawWord) -> EnvSetting | None:
        """`NAME=value` in front of a command, as the command would see it."""
        match = ASSIGNMENT.match(word.literal)
        if match is None or word.array is not None:
            return None
        value = self._value(word, match.end())
        text = None if _is_opaque(value) else "".join(map(_known, value))
        name, place = match.group().rstrip("=").rstrip("+"), self.source.place(word.start)
        return EnvSetting(name, text, place, self.source, word.start, word.end)

    def _value(self, word: RawWord, skip: int) -> Value:
        first = word.pieces[0]
        pieces = [Piece("text", first.chars[skip:], quoted=first.quoted), *word.pieces[1:]]
        return [part for piece in pieces for part in self._parts(piece)]

    def _parts(self, piece: Piece) -> Value:
        """What a piece of a word becomes: a variable its value or its default, where one of them is known."""
        if piece.kind != "variable":
            return [piece]
        if piece.name in self.variables:
            return self.variables[piece.name]
        if piece.default is not None:
            return [Piece("text", piece.default)]
        return [Piece("opaque", piece.chars)]

    def expand(self, word: RawWord, style: Style = "shell") -> list[Word]:
        """The words that this raw word becomes: none, one, or several when a variable splits."""
        if len(word.pieces) == 1 and word.pieces[0].kind == "variable":
            name = word.pieces[0].name
            if name in self.arrays:
                return [item for _, item in self.arrays[name]]
        simple = all(piece.kind == "text" for piece in word.pieces)
        if simple:
            text = "".join(c for piece in word.pieces for c, _ in piece.chars)
            return [self._word(text, word.start, word.end, False, style)]
        return self._expand_split(word, style)

    def _expand_split(self, word: RawWord, style: Style) -> list[Word]:
        fields: list[list[Char]] = [[]]
        opaque = [False]
        started = [False]
        for piece in word.pieces:
            splits = piece.kind == "variable" and not piece.quoted
            for part in self._parts(piece):
                if part.kind == "opaque":
                    fields[-1] += part.chars
                    opaque[-1] = started[-1] = True
                    continue
                for char in part.chars:
                    if not (splits and char[0] in " \t\n"):
                        fields[-1].append(char)
                        started[-1] = True
                    elif started[-1]:
                        fields.append([])
                        opaque.append(False)
                        started.append(False)
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
            words.append(self._word(text, start, max(start, end), is_opaque, style if inside else "expanded"))
        return words

    def _word(self, text: str, start: int, end: int, opaque: bool, style: Style) -> Word:
        opaque = opaque or text in OMITTED or (self.expanded and "$" in text)
        return Word(text, self.source.place(start), self.source, start, end, opaque, style)


def _known(piece: Piece) -> str:
    return "".join(char for char, _ in piece.chars) if piece.kind == "text" else ""


def _is_opaque(value: Value) -> bool:
    return any(piece.kind == "opaque" for piece in value)

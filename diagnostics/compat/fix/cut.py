"""What to cut out of a text so that nothing of an option or a variable is left: blanks, commas, dashes, lines."""

from __future__ import annotations

import re

from ..inputs.base import EnvSetting, Source, Word
from ..inputs.lexer import CONTINUATIONS

Span = tuple[int, int]
Replacement = tuple[int, int, str]
# What may stand between an item and its comma: blanks, and the backslash of a line that goes on.
_BLANKS = " \t\r\n\\"
# Where a statement of a shell begins and ends, what joins it to the next, and words around the first and last of a block.
_BEGINS = re.compile(r"(?:^|(?<!\\)(?<!\\\r)\n|[;&|({)]|\b(?:then|else|do))[ \t]*$")
_KEYWORD = re.compile(r"(?:^|[;&\n({)]|\b(?:then|else|do))[ \t]*\b(export|env)[ \t]+$")
_SETS = re.compile(r"(?:export|env|declare|local|readonly|typeset)\b|\w+=")
_ENDS = re.compile(r"[ \t]*(?:[;&|)]|\r?\n|$)")
_JOINS = re.compile(r"[ \t]*(&&|;(?!;))[ \t]*")
_OPENS = re.compile(r"(?:\b(?:then|else|do)|[({])$")
_CLOSES = re.compile(r"[\s;]*(?:(?:fi|else|elif|done)\b|[)}])")
# A YAML key at the end of a text with nothing but comments behind it; the next line that says something, and its blanks.
_KEY_ALONE = re.compile(r"^([ \t]*)[\w.\"'-]+:(?:[ \t]*(?:#[^\n]*)?\r?\n)+\Z", re.MULTILINE)
_YAML_LINE = re.compile(r"^([ \t]*)([^\s#])", re.MULTILINE)
_NEWLINE = re.compile(r"\r?\n")
_GOES_ON = re.compile(rf"[{re.escape(CONTINUATIONS)}]\r?\n")
_BETWEEN = re.compile(rf"(?:[ \t]|{_GOES_ON.pattern})*")
_LINE_END = re.compile(r"[ \t]*(?:\\[ \t]*|#[^\n]*)?\r?(?:\n|$)")


class Changes:
    """Replacements collected for one or several texts, and words and items to take out with what is around them."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._replacements: dict[str, list[Replacement]] = {}
        self._words: dict[str, list[Span]] = {}
        self._items: dict[str, list[Span]] = {}

    def put(self, source: Source, start: int, end: int, new: str = "") -> None:
        """Write `new` for what stands between two offsets."""
        self._sources[source.name] = source
        self._replacements.setdefault(source.name, []).append((start, end, new))

    def drop_words(self, source: Source, start: int, end: int) -> None:
        """Take words of a shell text out."""
        self._sources[source.name] = source
        self._words.setdefault(source.name, []).append((start, end))

    def drop_item(self, source: Source, start: int, end: int) -> None:
        """Take an item of a list out, or a key of a mapping, with its comma, or with its dash and its line."""
        self._sources[source.name] = source
        self._items.setdefault(source.name, []).append((start, end))

    def take_back(self, source: Source, start: int, end: int) -> bool:
        """Leave an item or a word where it is; whether it was to be taken out."""
        going = [spans.get(source.name, []) for spans in (self._items, self._words)]
        found = any((start, end) in spans for spans in going)
        for spans in going:
            spans[:] = [span for span in spans if span != (start, end)]
        return found

    def drops(self, word: Word) -> bool:
        """Whether a word is among those to be taken out."""
        name = word.source.name
        spans = [*self._words.get(name, ()), *self._items.get(name, ())]
        return any(start <= word.start < end for start, end in spans)

    def texts(self) -> dict[str, tuple[str, str]]:
        """Each changed text by its source's name: as it was, and as it will be."""
        found = {}
        for name, source in self._sources.items():
            text = source.text
            cuts = shell_cuts(text, self._words.get(name, []))
            cuts += [(*span, "") for span in item_cuts(text, self._items.get(name, []))]
            new = applied(text, [*self._replacements.get(name, []), *cuts])
            if new != source.text:
                found[name] = (source.text, new)
        return found


def applied(text: str, replacements: list[Replacement]) -> str:
    """The text with replacements made from the end to the front; overlapping ones are merged by dropping the inner."""
    done = len(text) + 1
    joined: dict[tuple[int, int], str] = {}
    for start, end, new in dict.fromkeys(replacements):
        joined[start, end] = joined.get((start, end), "") + new
    for (start, end), new in sorted(joined.items(), reverse=True):
        if end > done:
            end = done
        if start > end:
            continue
        text = text[:start] + new + text[end:]
        done = start
    return text


def shell_span(text: str, start: int, end: int) -> Span:
    """What to cut so that no blank, and no empty continued line, is left behind."""
    left, right = start, end
    while left > 0 and text[left - 1] in " \t":
        left -= 1
    after = right
    while after < len(text) and text[after] in " \t":
        after += 1
    at_line_start = left == 0 or text[left - 1] == "\n"
    newline = _NEWLINE.match(text, after)
    if at_line_start and (goes_on := _GOES_ON.match(text, after)):
        return left, goes_on.end()
    if left == 0 and newline:
        return left, newline.end()
    if at_line_start and left > 0 and (after >= len(text) or newline):
        back = len(text[: left - 1].removesuffix("\r"))
        if text[:back].endswith(tuple(CONTINUATIONS)):
            back = len(text[: back - 1].rstrip(" \t"))
        return back, right
    if at_line_start or (left == start and text[left - 1] in "\"'("):
        return start, after
    return left, right


def _runs(text: str, spans: list[Span], between: re.Pattern[str]) -> list[Span]:
    """Spans in order, those joined that have nothing but `between` between them."""
    runs: list[Span] = []
    for start, end in sorted(spans):
        if runs and (start <= runs[-1][1] or between.fullmatch(text, runs[-1][1], start)):
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((start, end))
    return runs


def shell_cuts(text: str, spans: list[Span]) -> list[Replacement]:
    """`shell_span` of each run of words to take out; a statement that is left with its keyword alone goes whole."""
    found: list[Replacement] = []
    for start, end in reversed(_runs(text, spans, _BETWEEN)):
        rest = applied(text, found)[end:]
        alone = _ENDS.match(rest)
        keyword = _KEYWORD.search(text[:start]) if alone else None
        start = keyword.start(1) if keyword else start
        found.append(
            _statement_cut(text, start, end, rest)
            if alone and _SETS.match(text, start) and _BEGINS.search(text[:start])
            else (*shell_span(text, start, end), "")
        )
    return found


def _statement_cut(text: str, start: int, end: int, rest: str) -> Replacement:
    """How a whole statement goes: with the `&&` or `;` behind it, or for a `:` where the shell needs some statement.

    `rest` is what will stand behind it.
    """
    before, joined = text[:start].rstrip(), _JOINS.match(rest)
    guarded = before.endswith(("&&", "||"))
    if guarded and not (joined and joined.group(1) == "&&" and before.endswith("&&")):
        return start, end, ":"
    if not guarded and _OPENS.search(before) and _CLOSES.match(rest):
        return start, end, ":"
    return (start, end + joined.end(), "") if joined else (*shell_span(text, start, end), "")


def is_block_item(text: str, start: int, end: int) -> bool:
    """Whether an item stands on lines of its own behind a dash, or a key on lines that no comma divides."""
    before = text[text.rfind("\n", 0, start) + 1 : start].strip()
    return before == "-" or (not before and text[end:].lstrip(_BLANKS)[:1] not in (",", "}", "]", ")"))


def whole_lines(text: str, start: int, end: int) -> Span:
    """The lines that a span touches."""
    newline = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if newline < 0 else newline + 1


def item_cuts(text: str, spans: list[Span]) -> list[Span]:
    """What to cut so that items of lists and keys of mappings are gone: their lines, or each run with one comma."""
    blocks = [span for span in spans if is_block_item(text, *span)]
    flow = [span for span in spans if span not in blocks]
    runs = _runs(text, flow, re.compile(r"[\s\\]*,[\s\\]*"))
    lines = _runs(text, [whole_lines(text, *span) for span in blocks], re.compile(r""))
    return [(_without_key(text, *run), run[1]) for run in lines] + [_item_span(text, *run) for run in runs]


def _without_key(text: str, start: int, end: int) -> int:
    """Where a cut of all that a YAML key holds begins: at the key, which would be left with null."""
    key, behind = _KEY_ALONE.search(text[:start]), _YAML_LINE.search(text, end)
    if key is None:
        return start
    depth, item = key.group(1), text[start:end].lstrip(" \t")
    own = text[start:end].removesuffix(item)
    beside = own == depth and item.startswith("- ")  # a list may begin right below its key
    more = behind is not None and (
        len(behind.group(1)) > len(depth) or (beside and behind.groups() == (depth, "-"))
    )
    return key.start() if (len(own) > len(depth) or beside) and not more else start


def _item_span(text: str, start: int, end: int) -> Span:
    after, before = end, start
    while text[after : after + 1] and text[after] in _BLANKS:
        after += 1
    while before > 0 and text[before - 1] in _BLANKS:
        before -= 1
    if text[after : after + 1] != ",":
        return (before - 1, end) if text[before - 1 : before] == "," else (start, end)
    after += 1
    line, left = _LINE_END.match(text, after), len(text[:start].rstrip(" \t"))
    if line is None:
        return start, after + len(text[after:]) - len(text[after:].lstrip(" \t"))
    return (left, line.end()) if text[:left].endswith("\n") else (left, after)


def cut_variable(setting: EnvSetting, changes: Changes) -> None:
    """Cut the text that sets an environment variable, if its source is known."""
    if setting.source is not None:
        drop = changes.drop_words if setting.style == "shell" else changes.drop_item
        drop(setting.source, setting.start, setting.end)

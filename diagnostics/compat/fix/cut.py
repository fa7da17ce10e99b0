"""What to cut out of a text so that nothing of an option or a variable is left: blanks, commas, dashes, lines."""

from __future__ import annotations

import re

from ..inputs.base import EnvSetting, Source, Word

Span = tuple[int, int]
Replacement = tuple[int, int, str]
# What may stand between an item and its comma: blanks, and the backslash of a line that goes on.
_BLANKS = " \t\r\n\\"
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
        """Leave an item where it is; whether it was to be taken out."""
        items = self._items.get(source.name, [])
        found = (start, end) in items
        self._items[source.name] = [item for item in items if item != (start, end)]
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
            spans = shell_cuts(text, self._words.get(name, [])) + item_cuts(text, self._items.get(name, []))
            cuts = [(*span, "") for span in spans]
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
    if at_line_start and text[after : after + 2] == "\\\n":
        return left, after + 2
    if left == 0 and text[after : after + 1] == "\n":
        return left, after + 1
    if at_line_start and left > 0 and (after >= len(text) or text[after] == "\n"):
        back = left - 1
        if text[:back].endswith("\\"):
            back = len(text[: back - 1].rstrip(" \t"))
        return back, right
    if left == 0 or text[left - 1] in "\"'(":
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


def shell_cuts(text: str, spans: list[Span]) -> list[Span]:
    """`shell_span` of each run of words to take out; a statement that is left with its keyword alone goes whole."""
    runs = _runs(text, spans, re.compile(r"(?:[ \t]|\\\n)*"))
    found = []
    for start, end in runs:
        keyword = re.search(r"(?:^|(?<=[;&\n]))[ \t]*\b(export|env)[ \t]+$", text[:start])
        alone = keyword is not None and re.match(r"[ \t]*(?:[;&\n]|$)", text[end:])
        found.append(shell_span(text, keyword.start(1) if keyword and alone else start, end))
    return found


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
    return [whole_lines(text, *span) for span in blocks] + [_item_span(text, *run) for run in runs]


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
    source, start, end = setting.source, setting.start, setting.end
    if source is None:
        return
    text = source.text
    if setting.style == "shell":
        statement = not text.startswith(setting.name, start)  # `export X=1`, not `X=1 command`
        joined = re.match(r"[ \t]*(?:&&|;)[ \t]*", text[end:])
        if statement and joined:
            changes.put(source, start, end + joined.end())
        else:
            changes.drop_words(source, start, end)
    else:
        changes.drop_item(source, start, end)

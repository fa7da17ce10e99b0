"""What to cut out of a text so that nothing of an option or a variable is left: blanks, commas, dashes, lines."""

from __future__ import annotations

import re

from ..inputs.base import EnvSetting, Source, Word

Replacement = tuple[int, int, str]


class Changes:
    """Replacements collected for one or several texts, and words to take out together with the blanks around them."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._replacements: dict[str, list[Replacement]] = {}
        self._words: dict[str, list[tuple[int, int]]] = {}

    def put(self, source: Source, start: int, end: int, new: str = "") -> None:
        """Write `new` for what stands between two offsets."""
        self._sources[source.name] = source
        self._replacements.setdefault(source.name, []).append((start, end, new))

    def drop_words(self, source: Source, start: int, end: int) -> None:
        """Take words of a shell text out."""
        self._sources[source.name] = source
        self._words.setdefault(source.name, []).append((start, end))

    def drops(self, word: Word) -> bool:
        """Whether a word is among those to be taken out."""
        return any(start <= word.start < end for start, end in self._words.get(word.source.name, ()))

    def texts(self) -> dict[str, tuple[str, str]]:
        """Each changed text by its source's name: as it was, and as it will be."""
        found = {}
        for name, source in self._sources.items():
            cuts = [(*span, "") for span in shell_cuts(source.text, self._words.get(name, []))]
            new = applied(source.text, [*self._replacements.get(name, []), *cuts])
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


def shell_span(text: str, start: int, end: int) -> tuple[int, int]:
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


def shell_cuts(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """`shell_span` of each run of words to take out; a statement that is left with its keyword alone goes whole."""
    runs: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if runs and not text[runs[-1][1] : start].replace("\\\n", "").strip(" \t"):
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((start, end))
    found = []
    for start, end in runs:
        keyword = re.search(r"(?:^|(?<=[;&\n]))[ \t]*\b(export|env)[ \t]+$", text[:start])
        alone = keyword is not None and re.match(r"[ \t]*(?:[;&\n]|$)", text[end:])
        found.append(shell_span(text, keyword.start(1) if keyword and alone else start, end))
    return found


def is_block_item(text: str, start: int) -> bool:
    """Whether a list item stands on a line of its own behind a dash."""
    return text[text.rfind("\n", 0, start) + 1 : start].strip() == "-"


def block_item_span(text: str, start: int, end: int) -> tuple[int, int]:
    """A list item with its dash and its line."""
    newline = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if newline < 0 else newline + 1


def flow_item_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Items of a list on one line, with one comma."""
    after = end
    while after < len(text) and text[after] in " \t\n":
        after += 1
    if text[after : after + 1] == ",":
        after += 1
        while after < len(text) and text[after] in " \t":
            after += 1
        return start, after
    before = start
    while before > 0 and text[before - 1] in " \t\n":
        before -= 1
    return (before - 1, end) if text[before - 1 : before] == "," else (start, end)


def cut_key(text: str, start: int, end: int) -> tuple[int, int]:
    """What to cut so that a key is gone from a mapping, with its line when it has one of its own."""
    alone = not text[text.rfind("\n", 0, start) + 1 : start].strip()
    return block_item_span(text, start, end) if alone else flow_item_span(text, start, end)


def cut_variable(setting: EnvSetting, changes: Changes) -> None:
    """Cut the text that sets an environment variable; one without a source stays."""
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
    elif setting.style == "key":
        changes.put(source, *cut_key(text, start, end))
    elif is_block_item(text, start):
        changes.put(source, *block_item_span(text, start, end))
    else:
        changes.put(source, *flow_item_span(text, start, end))

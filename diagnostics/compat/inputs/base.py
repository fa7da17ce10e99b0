"""What every reader produces: a configuration whose every part knows where it was written."""

from __future__ import annotations

import bisect
import re
import sys
from typing import Any, Literal

import msgspec

from ....core.errors import ConfigError
from ....core.places import Place

# Words that start a server which this checker knows.
SERVER = re.compile(r"\bvllm\s+serve\b|vllm\.entrypoints\.|\bdynamo\.vllm\b|\bengine\s+serve\b")
# The module of Dynamo's worker.
DYNAMO = "dynamo.vllm"
EntryPoint = Literal["serve", "api_server"]
Style = Literal["shell", "array", "item", "expanded"]


class UnreadableInput(ConfigError):
    """An input holds no configuration this checker understands; it is refused, never passed."""


class NoServer(UnreadableInput):
    """An input was read, and starts no server."""


class Source:
    """A named text, and the line and column of each of its characters."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._starts = [0]
        for offset, character in enumerate(text):
            if character == "\n":
                self._starts.append(offset + 1)

    def place(self, offset: int) -> Place:
        """The 1-based line and column of the character at `offset`."""
        line = bisect.bisect_right(self._starts, offset)
        return Place(self.name, line, offset - self._starts[line - 1] + 1)

    def offset(self, line: int, byte: int) -> int:
        """The offset of a place as `ast` counts: lines from 1, columns in bytes of UTF-8 from 0."""
        start = self._starts[line - 1]
        return start + len(self.text[start : start + byte].encode()[:byte].decode(errors="ignore"))


class Block(msgspec.Struct):
    """A part of a shell text that does not simply run once: a branch, a loop, a function, a subshell, or what stands
    behind `&&` or `||`. `begin:end` is its text; an open one has no end yet."""

    kind: str
    begin: int
    end: int = sys.maxsize

    @property
    def closed(self) -> bool:
        """Whether it has an end."""
        return self.end < sys.maxsize

    def holds(self, offset: int) -> bool:
        """Whether what stands at `offset` is part of it."""
        return self.begin <= offset < self.end


class Word(msgspec.Struct, frozen=True):
    """One argument of a command. `start:end` is its raw text in the source, quotes included.

    `opaque` marks a word that holds a part nobody can know before it runs, such as `$LIMIT`.
    """

    text: str
    place: Place
    source: Source
    start: int
    end: int
    opaque: bool = False
    # How `--fix` must write it back: as a word of the command or of a shell's array, as an item of a YAML list, or,
    # where a variable's text gives it, not at all.
    style: Style = "shell"
    # Whether only one branch of an `if` or `case` gives it.
    conditional: bool = False


class Entry(msgspec.Struct, frozen=True):
    """One key of a settings file, with its decoded value; what only a run could tell is `opaque`.

    `start:end` is the text of the key and its value, which begins at `value_start`; 0:0 where they stand apart.
    """

    key: str
    value: Any
    place: Place
    source: Source
    opaque: bool = False
    start: int = 0
    value_start: int = 0
    end: int = 0


class EnvSetting(msgspec.Struct, frozen=True):
    """One environment variable the server would see; `value` is None where it cannot be known.

    `start:end` of `source` is the text that sets it and nothing else; without a source no fix can cut it out.
    """

    name: str
    value: str | None
    place: Place
    source: Source | None = None
    start: int = 0
    end: int = 0
    style: Literal["shell", "item"] = "shell"


def unread_environment(name: str) -> str:
    """The note about a file or an object whose variables a server sees and nobody here has read."""
    return f"variables that {name} sets were not checked"


class Configuration(msgspec.Struct):
    """One server as configured: the words of its command, its YAML keys and its environment.

    `typed` says that the entries are values as such, not text for a parser: a Helm chart's, or keyword arguments of
    Python (`keywords`), which have one name each. `usage` says what it starts: the server, the offline class `LLM`, or
    an engine inside a program.
    """

    label: str
    source: Source
    engine: str = "vllm"
    entry_point: EntryPoint | None = None
    words: list[Word] = []
    entries: list[Entry] = []
    env: dict[str, EnvSetting] = {}
    image: str | None = None
    # Settings files the command names that could not be read: nothing is certain about them.
    unread: tuple[str, ...] = ()
    notes: list[str] = []
    # Keys of a settings file that stand there a second time.
    duplicates: list[Entry] = []
    typed: bool = False
    keywords: bool = False
    usage: Literal["api_server", "llm", "engine"] = "api_server"
    # What starts it and may add options of its own.
    launcher: str | None = None
    # Whether its front end passes over options it does not know instead of stopping.
    lenient: bool = False
    # Whether `--fix` can rewrite it.
    editable: bool = True
    # Words in front of the model that the image's own entry point makes into arguments (`vllm serve` twice).
    doubled: Word | None = None
    # Arguments of `LLM` behind the model that are given without their names.
    unnamed: list[Word] = []
    # The module or script that starts the server, when it is not the `vllm` command.
    module: Word | None = None
    # How many GPUs its container asks for, where one pod is all there is.
    gpus: int | None = None
    # The line of the command that starts it, in a shell text.
    line: int = 0
    # The parts of its shell text that run under a condition, or more than once.
    blocks: list[Block] = []

    def blocks_at(self, offset: int) -> set[int]:
        """Which of the `blocks` hold what stands at `offset` of the shell text."""
        return {index for index, block in enumerate(self.blocks) if block.holds(offset)}

    @property
    def start_place(self) -> Place:
        """Where the configuration begins: the place of findings that have no better one."""
        if self.words:
            return self.words[0].place
        if self.entries:
            return self.entries[0].place
        return Place(self.source.name, 1, 1)

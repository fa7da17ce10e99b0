"""Finds the servers that a shell text starts: `vllm serve`, the API server module, container images, `engine serve`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from .base import DYNAMO, SERVER, Configuration, EntryPoint, EnvSetting, Source, Word, unread_environment
from .containers import Container, basename, docker_env, extent, find_container, starts_itself
from .embedded import MANIFEST
from .kserve import adopt, is_huggingfaceserver
from .lexer import ASSIGNMENT, Char, Piece, RawWord, here_documents, lex
from .shell import ENTERS, LEAVES, Shell

API_SERVER = re.compile(r"vllm\.entrypoints(\.\w+)*\.api_server(\.entry)?")
API_SERVER_FILE = re.compile(r"(^|/)(entrypoints/(openai/)?)api_server\.py$")
# Words of the shell's own in front of a command.
KEYWORDS = frozenset(("!", "until", "while", *ENTERS, *LEAVES))
# Commands that look at something, in front of `&&` or `||`.
TESTS = frozenset(["[", "[[", "test"])
# What prints its words, and what looks for processes or lines that hold them.
SAYS = frozenset(["echo", "printf"])
SEEKS = frozenset(["egrep", "grep", "killall", "pgrep", "pkill"])
# What runs a container of an image that starts the server itself.
RUNS = re.compile(r"\b(?:docker|podman|nerdctl)\s+(?:container\s+)?run\s.*vllm", re.S)
# Files that scripts source for their programs, not for the server's settings.
PREPARES = re.compile(r"activate|conda|profile|rc$|setvars|virtualenv")
# What may stand in front of a server's command, where the text around it may be prose.
LAUNCHERS = frozenset((
    "apptainer", "bash", "conda", "docker", "enroot", "env", "eval", "exec",
    "kubectl", "mamba", "mpiexec", "mpirun", "nerdctl", "nice", "nohup", "nsys", "numactl", "oc",
    "pixi", "podman", "poetry", "python", "python3", "ray", "setsid", "sh", "singularity", "srun",
    "ssh", "sudo", "taskset", "time", "timeout", "tini", "uv", "uvx",
))  # fmt: skip


def find_entry(words: Sequence[Word]) -> tuple[int, str, EntryPoint] | None:
    """(index of the first argument, engine, entry point) of the server that these words start."""
    for index, word in enumerate(words):
        following = words[index + 1].text if index + 1 < len(words) else ""
        name = basename(word.text)
        if name in ("vllm", "vllm.exe") and following == "serve":
            return index + 2, "vllm", "serve"
        if word.text == "vllm.entrypoints.cli.main" and following == "serve":
            return index + 2, "vllm", "serve"
        if (name == "engine" or word.text in ("camshaft", "camshaft.cli.main")) and following == "serve":
            return index + 2, "camshaft", "serve"
        if API_SERVER.fullmatch(word.text) or API_SERVER_FILE.search(word.text) or word.text == DYNAMO:
            return index + 1, "vllm", "api_server"
    return None


class CommandReader:
    """Collects the servers of one shell text."""

    def __init__(
        self, source: Source, label: str, env: Sequence[EnvSetting] = (), prose: bool = False
    ) -> None:
        """`prose` says that the text may be anything: only what can be a command counts as one."""
        self.source = source
        self.label = label
        self.prose = prose
        self.shell = Shell(source)
        for setting in env:
            self.shell.exported[setting.name] = setting
            if setting.value is not None:
                self.shell.variables[setting.name] = [Piece("text", [(c, 0) for c in setting.value])]
        self.found: list[Configuration] = []
        self.said: list[list[Word]] = []
        self.line = 1  # of the command at hand
        self.sourced: list[str] = []
        # Where here-documents stand that are manifests, for a reader of those.
        self.manifests: list[tuple[int, int]] = []

    def read(self, chars: list[Char], depth: int = 0) -> list[Configuration]:
        """The servers these characters start, in order; nested `sh -c "..."` texts included."""
        tests = False
        self.shell.open = []
        for command in lex(chars):
            self.shell.operators(command[0].before, tests, command[0].start)
            tests = command[0].literal in TESTS
            self.line = self.source.place(command[0].start).line
            self._command(command, depth)
        said, self.said = self.said, []
        for words in said if not self.found else []:  # `echo "vllm serve ..." > run.sh`
            self._nested(words, dict(self.shell.exported), depth)
        if not self.found and depth < 3:
            for body in here_documents(chars):
                if MANIFEST.search("".join(char for char, _ in body)):
                    self.manifests.append((body[0][1], body[-1][1] + 1))
                else:
                    self.read(body, depth + 1)
        return self.found

    def _command(self, command: list[RawWord], depth: int) -> None:
        if command[0].literal == "function":
            command = command[2:]
        while command and command[0].literal in KEYWORDS:
            self.shell.keyword(command[0].literal, command[0].start)
            command = command[1:]
        env: dict[str, EnvSetting] = dict(self.shell.exported)
        index = 0
        while index < len(command) and ASSIGNMENT.match(command[index].literal):
            setting = self.shell.setting(command[index])
            if setting is not None:
                env[setting.name] = setting
            index += 1
        if index == len(command):
            for word in command:
                self.shell.assign(word, export=False)
            return
        head = command[index].literal
        if head in ("export", "declare", "local", "readonly", "typeset", "set"):
            self._builtin(command[index], command[index + 1 :])
            return
        words = [word for raw in command[index:] for word in self.shell.expand(raw)]
        self._words(words, env, depth)

    def _builtin(self, statement: RawWord, rest: list[RawWord]) -> None:
        head = statement.literal
        flags = [word.literal for word in rest if word.literal.startswith("-")]
        if head == "set":
            self.shell.export_all = self.shell.export_all or any("a" in flag for flag in flags)
            return
        exports = head == "export" or any("x" in flag for flag in flags)
        for word in rest:
            if ASSIGNMENT.match(word.literal):
                self.shell.assign(word, exports, statement.start if len(rest) == 1 else None)
            elif exports and not word.literal.startswith("-"):
                self.shell.export(word.literal, word.start)

    def _words(self, words: list[Word], env: dict[str, EnvSetting], depth: int) -> None:
        head = basename(words[0].text)
        if head in SAYS:
            self.said.append(words)
        if head in ("source", ".") and len(words) > 1 and not PREPARES.search(words[1].text):
            self.sourced.append(words[1].text)
        if head in SAYS or head in SEEKS or (self.prose and not _may_launch(words[0])):
            return
        entry = find_entry(words)
        if entry is not None:
            begin, engine, point = entry
            for setting in [*env_words(words[:begin]), *docker_env(words[:begin])]:
                env[setting.name] = setting
            container = find_container(words[:begin])
            image = container.image if container else None
            self._add(words[begin:], env, engine, point, image)
            if point == "api_server":
                self.found[-1].module = words[begin - 1]
            if container and starts_itself(image) and not container.entry and container.begin == begin - 2:
                self.found[-1].doubled = words[container.begin]
            return
        container = find_container(words)
        if container is not None:
            env.update({setting.name: setting for setting in container.env})
            after = words[container.begin :]
            if container.runs_shell(after) and not any(holds_server(word.text) for word in after):
                return
            if not container.executes and not any(holds_server(word.text) for word in after):
                serves = bool(after) and after[0].text == "serve"
                self._add(
                    after[1:] if serves else after, env, "vllm", "serve" if serves else None, container.image
                )
                if serves and starts_itself(container.image) and not container.entry:
                    self.found[-1].doubled = after[0]
                return
        self._nested(words, env, depth, container)

    def _nested(
        self, words: list[Word], env: dict[str, EnvSetting], depth: int, container: Container | None = None
    ) -> None:
        """The servers of words that are commands themselves (`bash -c "vllm serve ..."`)."""
        for word in words:
            if depth >= 3 or not holds_server(word.text):
                continue
            inner = CommandReader(self.source, self.label, list(env.values()), prose=True)
            inner.shell.variables |= self.shell.variables
            inner.shell.expanded = word.opaque
            inner.shell.blocks = self.shell.blocks
            inner.sourced = self.sourced
            chars = word_characters(word)
            found = inner.read(chars, depth + 1)
            self.manifests += inner.manifests
            for configuration in found:
                configuration.editable = is_verbatim(chars, self.source.text)
            if found and container and starts_itself(container.image) and not container.entry:
                found[0].doubled = words[container.begin]
            self.found += found

    def _add(
        self,
        words: list[Word],
        env: dict[str, EnvSetting],
        engine: str,
        point: EntryPoint | None,
        image: str | None,
    ) -> None:
        self.found.append(
            Configuration(
                self.label,
                self.source,
                engine=engine,
                entry_point=point,
                words=[self._marked(word) for word in words],
                env=dict(env),
                image=image,
                line=self.line,
                blocks=self.shell.blocks,
                notes=[unread_environment(name) for name in self.sourced],
            )
        )
        if is_huggingfaceserver(image) and point is None:
            adopt(self.found[-1])

    def _marked(self, word: Word) -> Word:
        if word.style not in ("array", "expanded") or not self.shell.is_conditional(word.start):
            return word
        return msgspec.structs.replace(word, conditional=True)


def _may_launch(word: Word) -> bool:
    """Whether a line that begins with this word can start a server, and is no sentence about one."""
    name = basename(word.text)
    return (
        name in LAUNCHERS
        or name.startswith(("vllm", "engine", "camshaft", "python"))
        or word.opaque
        or "/" in word.text
        or bool(ASSIGNMENT.match(word.text))
    )


def env_words(words: Sequence[Word]) -> list[EnvSetting]:
    """`NAME=value` words in front of a server's command (`env A=b vllm serve`)."""
    found = []
    for word in words:
        match = ASSIGNMENT.match(word.text)
        if match and not match.group(1):
            name, value = match.group()[:-1], word.text[match.end() :]
            found.append(EnvSetting(name, value, word.place, *extent(word, word)))
    return found


def holds_server(text: str) -> bool:
    """Whether a word's text is itself a command that starts a server (`sh -c "vllm serve ..."`)."""
    return bool(SERVER.search(text) or RUNS.search(text)) and " " in text


def word_characters(word: Word) -> list[Char]:
    """The word's characters, each with its offset in the source where the text stands there verbatim."""
    return align(word.text, word.source.text, word.start, word.end)


def align(text: str, source: str, start: int, end: int) -> list[Char]:
    """Each character of a decoded text with its offset between `start` and `end` of the source.

    Folding, indentation and quotes of YAML or shell are stepped over; where the texts part ways, the
    last known offset stands.
    """
    chars: list[Char] = []
    at = start
    for char in text:
        probe = at
        if char.isspace():
            if probe < end and source[probe].isspace():
                at = probe
        else:
            while probe < end and source[probe] != char:
                probe += 1
            if probe < end:
                at = probe
        chars.append((char, at))
        at = min(at + 1, end)
    return chars


def is_verbatim(chars: list[Char], source: str) -> bool:
    """Whether every character stands in the source where it says, in the same order: only then can it be edited."""
    seen = [(char, at) for char, at in chars if not char.isspace()]
    ascending = all(a < b for (_, a), (_, b) in pairwise(seen))
    return ascending and all(source[at : at + 1] == char for char, at in seen)

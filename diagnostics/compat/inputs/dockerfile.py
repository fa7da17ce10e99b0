"""The server that a Dockerfile starts: its image, its ENV lines, and the words of ENTRYPOINT and CMD in either form."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from .base import Configuration, EnvSetting, Source, UnreadableInput, Word
from .commands import CommandReader, find_entry, holds_server, word_characters
from .containers import is_image, starts_itself
from .lexer import characters, lex
from .shell import Shell

INSTRUCTION = re.compile(
    r"^[ \t]*(ARG|FROM|ENV|ENTRYPOINT|CMD)[ \t]+((?:.*\\[ \t]*\r?\n(?:[ \t]*#.*\n)*)*.*)$", re.M | re.I
)
# What Docker takes out before it reads an instruction that goes on: the ends of its lines, and lines of comment.
JOINED = re.compile(r"\\(?=[ \t]*\r?\n)|^[ \t]*#.*$", re.M)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(slots=True)
class _Stage:
    """What one FROM line and those after it say."""

    image: str | None
    env: dict[str, EnvSetting] = field(default_factory=dict)
    parts: dict[str, list[Word]] = field(default_factory=dict)  # of ENTRYPOINT and CMD


def read_dockerfile(source: Source, label: str) -> list[Configuration]:
    """The server that a Dockerfile's ENTRYPOINT and CMD start. Raises UnreadableInput for a list that is no JSON."""
    reader = CommandReader(source, label)
    build = Shell(source)  # what ARG lines tell FROM and ENV; a command never sees it
    stages: dict[str, _Stage] = {}
    stage = _Stage(None)
    for match in INSTRUCTION.finditer(source.text):
        kind, body, at = match.group(1).upper(), match.group(2), match.start(2)
        if kind in ("ENTRYPOINT", "CMD") and re.fullmatch(r"\[.*\]\s*", body, re.S):
            stage.parts[kind] = _exec_form(source, kind, body, at)
            continue
        raws = [raw for command in lex(characters(body, at)) for raw in command]
        if kind == "ARG":
            for raw in raws:
                build.assign(raw, export=False)
            continue
        shell = build if kind in ("FROM", "ENV") else reader.shell
        words = [word for raw in raws for word in shell.expand(raw)]
        if kind == "FROM":
            stage = _from([word.text for word in words if not word.text.startswith("--")], stages)
        elif kind == "ENV":
            stage.env |= _variables(words, match)
        else:
            stage.parts[kind] = words
    image, env = stage.image, stage.env
    words = stage.parts.get("ENTRYPOINT", []) + stage.parts.get("CMD", [])
    entry = find_entry(words)
    doubled = words[0] if words and starts_itself(image) and "ENTRYPOINT" not in stage.parts else None
    if entry is not None:
        begin, engine, point = entry
        found = Configuration(label, source, engine, point, words[begin:], env=env, image=image)
        found.doubled = doubled
        if point == "api_server":
            found.module = words[begin - 1]
        return [found]
    nested = next((word for word in words if holds_server(word.text)), None)  # ["sh", "-c", "vllm serve ..."]
    if nested is not None:
        inner = CommandReader(source, label, list(env.values()))
        started = inner.read(word_characters(nested))
        for configuration in started:
            configuration.image = image
        if started:
            started[0].doubled = doubled
        return started
    if image and is_image(image) and words:
        return [Configuration(label, source, words=words, env=env, image=image)]
    return []


def _from(words: list[str], stages: dict[str, _Stage]) -> _Stage:
    """The stage that a FROM line begins: with an image's own start, or with all of the stage that it names."""
    name = words[0] if words else None
    base = stages.get(name or "", _Stage(name))
    stage = _Stage(base.image, dict(base.env), dict(base.parts))
    if len(words) == 3 and words[1].lower() == "as":
        stages[words[2]] = stage
    return stage


def _exec_form(source: Source, kind: str, body: str, at: int) -> list[Word]:
    """The words of a JSON list of strings, in which nothing is expanded."""
    text = JOINED.sub(lambda match: " " * len(match.group()), body)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items = None
    if not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
        raise UnreadableInput(
            f"{source.place(at)}: {kind} is no JSON list of strings, so that Docker hands it to a shell as it "
            'stands: write ["--option", "value"]'
        )
    places = [(at + match.start(), at + match.end()) for match in STRING.finditer(text)]
    return [
        Word(item, source.place(start), source, start, end, style="item")
        for item, (start, end) in zip(items, places, strict=True)
    ]


def _variables(words: list[Word], line: re.Match[str]) -> dict[str, EnvSetting]:
    """What an ENV line sets: `NAME=value ...`, or `NAME value`; one that sets a single variable goes with its line."""
    pairs = [word for word in words if "=" in word.text]
    if not pairs:
        name, value = (words[0].text, words[1].text) if len(words) > 1 else ("", "")
        return {name: _setting(name, value, words[0], *line.span())} if name else {}
    found = {}
    for word in pairs:
        name, _, value = word.text.partition("=")
        span = line.span() if len(pairs) == 1 else (word.start, word.end)
        found[name] = _setting(name, value, word, *span)
    return found


def _setting(name: str, value: str, word: Word, start: int, end: int) -> EnvSetting:
    return EnvSetting(name, value, word.place, word.source, start, end)

"""Shell scripts and systemd units: the servers of their commands, and of manifests in here-documents."""

from __future__ import annotations

import re

from .base import Configuration, Source, unread_environment
from .commands import CommandReader
from .lexer import Char, characters, lex
from .manifests import read_embedded

# A unit's sections, and the lines of them that make its command and environment.
UNIT = re.compile(r"^(?:\[(\w+)\]|(Environment|Image|Entrypoint|ExecStart|Exec)=((?:.*\\\r?\n)*.*)$)", re.M)
FILES = re.compile(r"^EnvironmentFile=-?(\S+)", re.M)
# How they stand in the command that a quadlet amounts to.
SHELL = {"Environment": "export ", "Entrypoint": " --entrypoint ", "Image": " ", "Exec": " "}


def read_commands(source: Source, label: str) -> list[Configuration]:
    """The servers that a command line or a shell script starts; bare `--flag value` words count as one."""
    reader = CommandReader(source, label)
    chars = characters(source.text)
    found = reader.read(chars)
    if len({configuration.line for configuration in found}) > 1:
        for configuration in found:
            configuration.label = f"{label}:{configuration.line}"
    found += read_embedded(reader)
    if not found and re.match(r"\s*-{1,2}\w", source.text):
        for command in lex(chars)[:1]:
            words = [word for raw in command for word in reader.shell.expand(raw)]
            found.append(Configuration(label, source, words=words))
    return found


def read_unit(source: Source, label: str) -> list[Configuration]:
    """The server of a systemd unit, or of a container's quadlet (podman-systemd.unit(5)), with its environment.

    The order of its lines means nothing; of a quadlet only what stands under `[Container]` reaches the server.
    """
    lines: dict[str, list[Char]] = {}
    section = ""
    quadlet = "\n[Container]" in "\n" + source.text
    for match in UNIT.finditer(source.text):
        section, key = match.group(1) or section, match.group(2)
        if key and (section == "Container" or not quadlet):
            begin = match.start()
            said = [(char, begin) for char in SHELL.get(key, "")] + characters(match.group(3), match.start(3))
            ending = [("\n", match.end())] if key in ("Environment", "ExecStart") else []
            lines[key] = lines.get(key, []) + said + ending
    run = [(char, lines["Image"][0][1]) for char in "podman run"] if "Image" in lines else []
    container = [char for key in ("Entrypoint", "Image", "Exec") for char in lines.get(key, [])]
    env, command = lines.get("Environment", []), lines.get("ExecStart", [])
    found = CommandReader(source, label).read(env + run + container + command)
    for configuration in found:
        configuration.notes += map(unread_environment, FILES.findall(source.text))
    return found

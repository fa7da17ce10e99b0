"""Containers that a command runs: which image, with what environment, and what follows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from .base import EnvSetting, Source, Word
from .kserve import is_huggingfaceserver

# A tag may be a variable's, or a template's.
IMAGE = re.compile(r"(?:^|/)[\w.-]*vllm[\w.-]*(?::(?:[\w.-]*(?:\$|\{\{).+|[\w.-]+))?(?:@sha256:\w+)?$", re.I)
# Images of other projects that hold vLLM and count releases of their own, and whether their own entry point starts its
# server: LMCache's does, Dynamo's runtime starts whatever command it is given.
OTHERS = {"lmcache/vllm-openai": True, "vllm-runtime": False}
CONTAINER_RUNNERS = frozenset({"docker", "podman", "nerdctl", "apptainer", "singularity"})
# What else than containers they create.
OBJECTS = frozenset({"buildx", "context", "manifest", "network", "volume"})
SHELLS = frozenset({"bash", "python", "python3", "sh", "zsh"})
# Options of `docker run` that take no value; every other option takes one.
RUN_SWITCHES = frozenset((
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-dit", "-itd", "--rm",
    "--init", "--privileged", "-P", "--publish-all", "--read-only", "--no-healthcheck",
    "--oom-kill-disable", "--sig-proxy", "-q", "--quiet", "--replace", "--nv", "--rocm",
))  # fmt: skip


def basename(text: str) -> str:
    """The last part of a path."""
    return text.rsplit("/", 1)[-1]


OFFICIAL = re.compile(r"(?:^|/)vllm/vllm-openai[\w.-]*(?:[:@]|$)")


def starts_itself(image: str | None) -> bool:
    """Whether an image's own entry point starts the server, so that what follows it are arguments."""
    return bool(image and OFFICIAL.search(image))


def other_project(image: str) -> str | None:
    """Which of `OTHERS` an image is, or None."""
    return next((name for name in OTHERS if f"/{name}" in f"/{image}"), None)


def is_image(text: str) -> bool:
    """Whether a container image's name says that it starts vLLM's server."""
    if not OTHERS.get(other_project(text) or "", True):
        return False
    return (bool(IMAGE.search(text)) or is_huggingfaceserver(text)) and not text.startswith("-")


class Container(msgspec.Struct):
    """A `docker run`: index of the first word after the image, its environment and `--entrypoint`.

    What follows the image of an `exec` is a command of its own.
    """

    begin: int
    image: str
    env: list[EnvSetting]
    entry: str | None
    executes: bool = False

    def runs_shell(self, after: Sequence[Word]) -> bool:
        """Whether what follows the image goes to a shell or an interpreter: by its `--entrypoint`, or as a command."""
        first = after[0].text if after and not starts_itself(self.image) else ""
        return basename(self.entry or first) in SHELLS


def find_container(words: Sequence[Word]) -> Container | None:
    """The container that these words run, when its image is a vLLM one."""
    runner = next((i for i, w in enumerate(words) if basename(w.text) in CONTAINER_RUNNERS), None)
    if runner is None:
        return None
    run = next((i for i in range(runner + 1, len(words)) if words[i].text in ("run", "create", "exec")), None)
    if run is None or any(word.text in OBJECTS for word in words[runner + 1 : run]):
        return None
    executes = words[run].text == "exec"
    entry: str | None = None
    index = run + 1
    while index < len(words):
        word = words[index]
        if not word.text.startswith("-"):
            if is_image(word.text):
                return Container(index + 1, word.text, docker_env(words[run + 1 : index]), entry, executes)
            if not word.opaque:  # some other image: only an explicit server command counts
                return None
            index += 1
            continue
        name, equals, value = word.text.partition("=")
        takes_value = not equals and name not in RUN_SWITCHES and index + 1 < len(words)
        given = value if equals else (words[index + 1].text if takes_value else "")
        if name == "--entrypoint":
            entry = given
        index += 2 if takes_value else 1
    return None


def docker_env(words: Sequence[Word]) -> list[EnvSetting]:
    """Every `-e NAME=value` among the words in front of a server's command."""
    found = []
    for index, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        given = value if equals else (words[index + 1].text if index + 1 < len(words) else "")
        if name in ("-e", "--env") and "=" in given:
            key, _, text = given.partition("=")
            last = word if equals else words[index + 1]
            found.append(EnvSetting(key, text, last.place, *extent(word, last)))
    return found


def extent(first: Word, last: Word) -> tuple[Source | None, int, int]:
    """Where words stand that set a variable, if one cut takes them out."""
    plain = first.style == last.style == "shell" and first.source is last.source and first.start <= last.start
    return (first.source, first.start, last.end) if plain else (None, 0, 0)

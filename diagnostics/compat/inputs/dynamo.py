"""NVIDIA Dynamo's worker: it takes the engine's options beside its own.

Its own parser takes what it knows; the rest goes to the parser of vLLM's `AsyncEngineArgs`, which refuses what it
does not know (ai-dynamo/dynamo, components/src/dynamo/vllm/args.py). Its own options differ from release to
release, so what no release of vLLM ever had counts as Dynamo's.
"""

from __future__ import annotations

import re

from ..releases.history import options
from .base import Configuration, Word

# Dynamo's own where the server of vLLM has one of the same name (components/src/dynamo/vllm/headless.py).
OWN = frozenset({"--headless"})
# A word that argparse takes for a value although it begins with a dash.
NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def adopt(configuration: Configuration) -> None:
    """Leave the engine's options only; what sets the HTTP server is then none."""
    leave_out(configuration)
    configuration.usage, configuration.module = "engine", None


def leave_out(configuration: Configuration) -> None:
    """Take out Dynamo's own options, and note which they were."""
    words: list[Word] = []
    passed: dict[str, None] = {}
    skipping = False
    for word in configuration.words:
        if word.text.startswith("-") and not NUMBER.fullmatch(word.text):
            name = word.text.partition("=")[0]
            skipping = name.startswith("--") and _is_own(name)
            if skipping:
                passed[name] = None
        if not skipping:
            words.append(word)
    own = {entry.key: None for entry in configuration.entries if _is_own("--" + entry.key)}
    configuration.words = words
    configuration.entries = [entry for entry in configuration.entries if entry.key not in own]
    if passed or own:
        names = ", ".join([*passed, *own])
        configuration.notes.append(f"not checked, as Dynamo's own: {names}")


def _is_own(name: str) -> bool:
    spelled = name.replace("_", "-")
    return spelled in OWN or options("vllm").name(spelled.partition(".")[0]) is None

"""The checker for callers: the command line, `engine serve` on its own file, and the diagnosis."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..cost.devices import Device
from .check import check
from .checks.findings import Result
from .inputs.base import Configuration
from .inputs.containers import other_project
from .inputs.read import read_path
from .releases import table
from .releases.versions import UnknownVersion, Version, resolve, versions

# What `--to` may say instead of a release: the newest one with a table.
NEWEST = ("latest", "newest")


def check_file(path: Path | str, *, engine: str | None = None) -> list[Result]:
    """The verdicts on every configuration in a file, by the newest release.

    Raises UnreadableInput: what cannot be judged is never passed.
    """
    return check_all(read_path(Path(path), engine), engine=engine)


def check_all(
    configurations: Sequence[Configuration],
    *,
    engine: str | None = None,
    start: str | None = None,
    targets: Sequence[str] = (),
    model: Mapping[str, Any] | None = None,
    device: Device | None = None,
) -> list[Result]:
    """One result for each configuration and target, in that order."""
    results: list[Result] = []
    for configuration in configurations:
        name = engine or guess_engine(configuration, [*targets, *([start] if start else [])])
        origin, notes = _start(name, start, configuration)
        for text in targets or [None]:
            target, note = resolve(name, None if text in NEWEST else text)
            result = check(
                configuration, engine=name, start=origin, target=target, model=model, device=device
            )
            results.append(
                msgspec.structs.replace(result, notes=(*result.notes, *notes, *([note] if note else [])))
            )
    return results


def _start(engine: str, text: str | None, configuration: Configuration) -> tuple[Version | None, list[str]]:
    """The release the configuration comes from: as told, or the tag of its container image."""
    tagged = image_release(configuration) if engine == "vllm" else None
    if text is None:
        return tagged, [] if tagged is None else [f"comes from {tagged}, by the tag of its image"]
    version, note = resolve(engine, text)
    other = f"the tag of its image says {tagged}; compared with {version}, as told"
    return version, [*([note] if note else []), *([other] if tagged not in (None, version) else [])]


# Images whose tags are vLLM's releases: KServe's and llm-d's, among others, count their own.
RELEASED = re.compile(
    r"(?:^|/)(?:[\w.-]+-)?vllm(?:-(?:openai|cpu|cuda|gpu|hpu|neuron|rocm|serve|tpu|xpu)[\w.-]*)?"
    r":v?(\d+\.\d+\.\d+(?:\.post\d+)?)"
)


def image_release(configuration: Configuration) -> Version | None:
    """vLLM's release by the tag of the container's image; None where there is none, or none that is known."""
    image = configuration.image or ""
    match = RELEASED.search(image)
    if match is None or other_project(image):
        return None
    try:
        return resolve("vllm", match.group(1))[0]
    except UnknownVersion:
        return None


def guess_engine(configuration: Configuration, releases: Sequence[str] = ()) -> str:
    """Whose configuration it is: as its command says; by the `releases` named, if only one engine has them; by the keys.

    A settings file is this engine's when it has every key and vLLM's newest release has not.
    """
    if configuration.engine != "vllm" or configuration.words or not configuration.entries:
        return configuration.engine
    releases = [release for release in releases if release not in NEWEST]
    if releases:
        return "camshaft" if all(_has("camshaft", r) and not _has("vllm", r) for r in releases) else "vllm"
    keys = [table.option_of(entry.key) for entry in configuration.entries]
    try:
        own = table.load("camshaft", versions("camshaft")[-1])
        other = table.load("vllm", versions("vllm")[-1])
    except (UnknownVersion, IndexError):
        return "vllm"
    ours = all(own.find(key) is not None for key in keys)
    theirs = all(other.find(key) is not None for key in keys)
    return "camshaft" if ours and not theirs else "vllm"


def _has(engine: str, release: str) -> bool:
    try:
        resolve(engine, release)
    except UnknownVersion:
        return False
    return True

"""Devices by the names people write: ``H100-80GB``, ``Tesla T4``, ``2x NVIDIA A100-SXM4-40GB``, ``RTX A6000``.

A device's facts stand in its hardware sheet; ``devices.yaml`` lists those that have none.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...core.errors import ConfigError, EvidenceError
from ...core.places import load_yaml

if TYPE_CHECKING:
    from ...core.config.hardware import Hardware

FOLDER = Path(__file__).resolve().parents[2] / "presets" / "hardware"


class Device(msgspec.Struct, frozen=True):
    """One accelerator. `memory_gib` is what its driver reports; `compute_capability` is 0 where it has none.

    `sheet` is the name of its hardware sheet, None where it has none. `keys` are its names without what people add,
    which several devices may share; `names` are those that mean this one alone.
    """

    name: str
    memory_gib: float
    compute_capability: float = 0.0
    vendor: str = "nvidia"
    platform: str = "cuda"
    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    usual: bool = False
    source: str = ""
    sheet: str | None = None


class UnknownDevice(ConfigError):
    """A device name that is not in the table; the message lists the nearest names."""


_NOISE = re.compile(
    r"\b(nvidia|amd|intel|google|geforce|tesla|instinct|radeon|graphics|generation|gen|server|workstation|edition|"
    r"max-q|blackwell|hopper|ampere|turing|volta|pcie|pci-e|sxm\d?|hbm\d?e?|oam|gpus?|tensor core|laptop)\b"
)
_VENDOR = re.compile(r"\b(nvidia|tesla|geforce|gpu)\b")
_COUNT = re.compile(r"^\s*\d{1,3}\s*[x*×]\s*(?=[a-z])|(?:\s+x|(?<=\d)x|\s*[*×:])\s*\d{1,2}\s*$")
_MEMORY = re.compile(r"(?<![a-z0-9])(\d+)\s*(?:gib|gb|g)\b")


def find_device(text: str) -> Device:
    """The device a person means by `text`; raises `UnknownDevice`, with the nearest names, for any other text.

    A leading or trailing count (``8xH100``, ``H100:8``) is ignored. Where a name comes in several sizes, the
    memory in `text` decides, and without one the usual size is meant.
    """
    lowered = without_count(text.strip().lower().replace("_", "-"))
    exact = _by_name().get(_exact(lowered))
    if exact is not None:
        return exact
    plain = _plain(lowered)
    candidates = [device for device in devices() if plain in device.keys]
    if not candidates:
        raise UnknownDevice(_unknown_message(text, plain))
    memory = _MEMORY.search(lowered)
    usual = _by_name().get(plain) or next((d for d in candidates if d.usual), candidates[0])
    if memory is None:
        return usual
    size = float(memory[1])
    close = [d for d in candidates if abs(d.memory_gib - size) <= 0.15 * size]
    board = "pcie" in lowered
    return min(
        close,
        key=lambda d: (abs(d.memory_gib - size), ("pcie" in d.name.lower()) != board, d is not usual),
        default=usual,
    )


def without_count(text: str) -> str:
    """A device's name without how many there are: ``8xH100`` and ``H100:8`` are ``H100``."""
    return re.sub(_COUNT.pattern, "", text, flags=re.IGNORECASE)


@cache
def devices() -> tuple[Device, ...]:
    """Every device: those with a sheet, in the order of their sheets' names, then the others."""
    others = read_mapping(Path(__file__).with_name("devices.yaml"))["devices"]
    sheets = (_of_sheet(path.stem, read_mapping(path)) for path in sorted(FOLDER.glob("*.yaml")))
    return (*sheets, *(msgspec.convert(row, Device, strict=False) for row in others))


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises EvidenceError for a file that holds none."""
    try:
        raw = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: not readable: {error}") from error
    if not isinstance(raw, dict):
        raise EvidenceError(f"{path}: a hardware sheet is a mapping")
    return raw


def hardware_of(device: Device) -> Hardware:
    """A device of the table as the machine that a configuration is resolved for."""
    from ...core.arithmetic.memory import GIB
    from ...core.config.hardware import Hardware

    whole = int(device.compute_capability)
    return Hardware(
        kind="cuda",
        name=device.name,
        memory_bytes=int(device.memory_gib * GIB),
        compute_capability=(whole, round((device.compute_capability - whole) * 10)),
    )


def _of_sheet(stem: str, sheet: dict[str, Any]) -> Device:
    """The device that a sheet describes. AMD's sheets tell a gfx target where NVIDIA's tell a compute capability."""
    target = sheet["compute_capability"]
    amd = target.startswith("gfx")
    names = [name.lower() for name in (stem, sheet["name"], *sheet["aliases"])]
    return Device(
        name=sheet["name"],
        memory_gib=sheet["memory_gib"],
        compute_capability=0.0 if amd else float(target),
        vendor="amd" if amd else "nvidia",
        platform="rocm" if amd else "cuda",
        keys=tuple(dict.fromkeys(map(_plain, names))),
        names=tuple(dict.fromkeys(map(_exact, names))),
        source=sheet["source"],
        sheet=stem,
    )


@cache
def _by_name() -> dict[str, Device]:
    return {name: device for device in devices() for name in device.names}


def _exact(lowered: str) -> str:
    """A name without vendor and punctuation."""
    return _squeeze(_VENDOR.sub(" ", lowered))


def _plain(lowered: str) -> str:
    """A name without what people add to it: vendor, brand, board and memory."""
    return _squeeze(_NOISE.sub(" ", _MEMORY.sub(" ", lowered)))


def _squeeze(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def _unknown_message(text: str, plain: str) -> str:
    import difflib

    keys = {key for device in devices() for key in device.keys}
    close = difflib.get_close_matches(plain, sorted(keys), n=4, cutoff=0.5)
    near = list(dict.fromkeys(find_device(key).name for key in close))
    hint = f"Nearest: {', '.join(near)}." if near else "`engine config list gpus` lists those with a sheet."
    return f"unknown device {text!r}. {hint}"

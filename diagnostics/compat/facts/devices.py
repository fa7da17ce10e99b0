"""Devices by the names people write: ``H100-80GB``, ``Tesla T4``, ``2x NVIDIA A100-SXM4-40GB``, ``RTX A6000``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ....core.errors import ConfigError

if TYPE_CHECKING:
    from ....core.config.hardware import Hardware


class Device(msgspec.Struct, frozen=True):
    """One accelerator. `memory_gib` is what its driver reports; `compute_capability` is 0 where it has none."""

    name: str
    memory_gib: float
    compute_capability: float = 0.0
    vendor: str = "nvidia"
    platform: str = "cuda"
    keys: tuple[str, ...] = ()
    usual: bool = False
    source: str = ""


class UnknownDevice(ConfigError):
    """A device name that is not in the table; the message lists the nearest names."""


_NOISE = re.compile(
    r"\b(nvidia|amd|intel|google|geforce|tesla|instinct|radeon|graphics|generation|gen|server|workstation|edition|"
    r"max-q|blackwell|hopper|ampere|turing|volta|pcie|pci-e|sxm\d?|hbm\d?e?|oam|gpus?|tensor core|laptop)\b"
)
_COUNT = re.compile(r"^\s*\d+\s*[x*×]\s*(?=[a-z])|(?:\s+x|(?<=\d)x|\s*[*×:])\s*\d{1,2}\s*$")
_MEMORY = re.compile(r"(?<![a-z0-9])(\d+)\s*(?:gib|gb|g)\b")


@cache
def _table() -> tuple[Device, ...]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = Path(__file__).with_name("devices.yaml").read_text(encoding="utf-8")
    raw: dict[str, Any] = yaml.load(text, Loader=loader)
    return tuple(msgspec.convert(row, Device, strict=False) for row in raw["devices"])


def devices() -> tuple[Device, ...]:
    """Every device of the table."""
    return _table()


def _squeeze(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def find_device(text: str) -> Device:
    """The device a person means by `text`; raises `UnknownDevice`, with the nearest names, for any other text.

    A leading or trailing count (``8xH100``, ``H100:8``) is ignored. Where a name comes in several sizes, the
    memory in `text` decides, and without one the usual size is meant.
    """
    lowered = _COUNT.sub("", text.strip().lower().replace("_", "-"))
    memory = _MEMORY.search(lowered)
    plain = _squeeze(_NOISE.sub(" ", _MEMORY.sub(" ", lowered)))
    candidates = [d for d in _table() if plain in d.keys]
    if not candidates:
        raise UnknownDevice(_unknown_message(text, plain))
    usual = next((d for d in candidates if d.usual), candidates[0])
    if memory is None:
        return usual
    size = float(memory[1])
    close = [d for d in candidates if abs(d.memory_gib - size) <= 0.15 * size]
    return min(close, key=lambda d: abs(d.memory_gib - size)) if close else usual


def hardware_of(device: Device) -> Hardware:
    """A device of the table as the machine that a configuration is resolved for."""
    from ....core.config.hardware import Hardware
    from ....core.memory import GIB

    whole = int(device.compute_capability)
    return Hardware(
        kind="cuda",
        name=device.name,
        memory_bytes=int(device.memory_gib * GIB),
        compute_capability=(whole, round((device.compute_capability - whole) * 10)),
    )


def _unknown_message(text: str, plain: str) -> str:
    import difflib

    keys = {key: device.name for device in _table() for key in device.keys}
    near = list(dict.fromkeys(keys[key] for key in difflib.get_close_matches(plain, keys, n=4, cutoff=0.4)))
    hint = (
        f"Nearest: {', '.join(near)}."
        if near
        else f"Known are, for instance, {', '.join(list(keys.values())[:4])}."
    )
    return f"unknown device {text!r}. {hint}"

"""Which hardware sheet a simulation uses when nobody says one."""

from __future__ import annotations

from pathlib import Path

from ...core.config import LoadedConfig, find_gpu
from ...core.errors import EvidenceError
from ...kernels.cache_folder import cache_root
from ..cost.hardware import HardwareSheet, load_hardware


def calibrated_sheet() -> Path:
    """Where `engine calibrate` writes this machine's sheet and predictions look for it."""
    return cache_root() / "hardware.yaml"


def device_for(loaded: LoadedConfig, named: str | None) -> HardwareSheet:
    """The device: the one named, the one a preset's name begins with, or this machine's.

    Raises EvidenceError when none of these is known.
    """
    if named is not None:
        return load_hardware(named)
    found = unnamed_device(
        loaded.preset or (loaded.source.stem if loaded.source else ""), loaded.config.device
    )
    if found is None:
        raise EvidenceError(f"which device? {NAME_ONE}")
    return found


NAME_ONE = "Name one with --gpu (e.g. --gpu H100), or run `engine calibrate` once to measure this machine"


def unnamed_device(name: str, device: str | None) -> HardwareSheet | None:
    """The device with which a preset's or file's name begins, else this machine's GPU or the sheet of its calibration.

    device: the kind that the configuration asks for, "cpu" or another.
    """
    guessed = _from_preset(name)
    if guessed is not None:
        return guessed
    gpu = None if device == "cpu" else find_gpu()
    if gpu is not None:
        return load_hardware(gpu.name)
    if not calibrated_sheet().is_file():
        return None
    try:
        return load_hardware(str(calibrated_sheet()))
    except EvidenceError as error:
        raise EvidenceError(
            f"{calibrated_sheet()}: {error}; `engine calibrate` writes it anew, --gpu names another"
        ) from error


def named_by_its_file(loaded: LoadedConfig, named: str | None) -> str:
    """What to say of a device that nobody named, where a file of one's own begins with its name; empty otherwise."""
    file = loaded.source
    if file is None or named is not None or loaded.preset:
        return ""
    found = _from_preset(file.stem)
    return "" if found is None else taken_from_name(file.name, found)


def taken_from_name(file: str, hardware: HardwareSheet) -> str:
    """The sentence that says where the device comes from."""
    return f"the device is taken to be {hardware.name}, with which the name of {file} begins; --gpu names another"


def named_in(name: str) -> str | None:
    """The device with which a preset's or a file's name begins: `h100` of `h100-70b`; None for other names."""
    words = name.split("-")
    for length in range(len(words), 0, -1):
        begin = "-".join(words[:length])
        try:
            load_hardware(begin)
        except EvidenceError:
            continue
        return begin
    return None


def _from_preset(name: str) -> HardwareSheet | None:
    named = named_in(name)
    return None if named is None else load_hardware(named)

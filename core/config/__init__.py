"""The configuration: one flat file with vLLM's names, where each value came from, and what it resolves to."""

from ..places import Place
from .hardware import Hardware, find_cpu, find_gpu, find_hardware
from .resolve import Effective, Resolved, resolve
from .schema import ServeConfig, group_of, json_schema
from .sources import Entry, LoadedConfig, Purpose, find_source, load_config, preset_names

__all__ = [
    "Effective",
    "Entry",
    "Hardware",
    "LoadedConfig",
    "Place",
    "Purpose",
    "Resolved",
    "ServeConfig",
    "find_cpu",
    "find_gpu",
    "find_hardware",
    "find_source",
    "group_of",
    "json_schema",
    "load_config",
    "preset_names",
    "resolve",
]

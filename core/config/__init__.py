"""The configuration: one flat file with vLLM's names, where each value came from, and what it resolves to."""

from .budget import memory_settings, required, rule_of
from .fit import find_shape, presets_for, require_machine
from .hardware import Hardware, find_cpu, find_gpu, find_hardware
from .resolve import Effective, Resolved, policy_file, resolve
from .schema import ServeConfig, group_of, json_schema
from .sources import LoadedConfig, Purpose, find_source, load_config, preset_names, with_policy
from .support import UNSUPPORTED

__all__ = [
    "UNSUPPORTED",
    "Effective",
    "Hardware",
    "LoadedConfig",
    "Purpose",
    "Resolved",
    "ServeConfig",
    "find_cpu",
    "find_gpu",
    "find_hardware",
    "find_shape",
    "find_source",
    "group_of",
    "json_schema",
    "load_config",
    "memory_settings",
    "policy_file",
    "preset_names",
    "presets_for",
    "require_machine",
    "required",
    "resolve",
    "rule_of",
    "with_policy",
]

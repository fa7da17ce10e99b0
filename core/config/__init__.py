"""The configuration: one flat file with vLLM's names, where each value came from, and what it resolves to."""

from ..places import Place
from .budget import memory_of, memory_settings, required, rule_of
from .conflicts import POLICY_CONFLICTS, Conflict
from .fit import find_shape, presets_for, require_machine
from .hardware import Hardware, find_cpu, find_gpu, find_hardware
from .resolve import Effective, Resolved, policy_file, policy_of, resolve
from .schema import ServeConfig, group_of, json_schema
from .sources import Entry, LoadedConfig, Purpose, find_source, load_config, preset_names, with_policy
from .support import UNSUPPORTED, Unsupported

__all__ = [
    "POLICY_CONFLICTS",
    "UNSUPPORTED",
    "Conflict",
    "Effective",
    "Entry",
    "Hardware",
    "LoadedConfig",
    "Place",
    "Purpose",
    "Resolved",
    "ServeConfig",
    "Unsupported",
    "find_cpu",
    "find_gpu",
    "find_hardware",
    "find_shape",
    "find_source",
    "group_of",
    "json_schema",
    "load_config",
    "memory_of",
    "memory_settings",
    "policy_file",
    "policy_of",
    "preset_names",
    "presets_for",
    "require_machine",
    "required",
    "resolve",
    "rule_of",
    "with_policy",
]

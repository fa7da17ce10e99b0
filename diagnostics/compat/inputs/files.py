"""Settings files: vLLM's flat `--config` YAML, this engine's own, and Triton's `model.json`.

Triton's vLLM backend hands `model.json` to vLLM's engine class, key by key, as keyword arguments
(triton-inference-server/vllm_backend, README.md); vLLM itself takes no JSON file.
"""

from __future__ import annotations

import re

import yaml

from ....core.errors import CamshaftError
from ..releases.history import options
from ..releases.table import option_of
from .base import Configuration, Entry
from .nodes import Tree

# Top-level keys of manifests and workflows, which are no server's settings.
FOREIGN_KEYS = frozenset(
    {"apiVersion", "kind", "services", "jobs", "repos", "steps", "stages", "dependencies", "plugins"}
)


def is_flat(node: yaml.Node) -> bool:
    """Whether a document is `key: value` lines, without lists or mappings inside."""
    return isinstance(node, yaml.MappingNode) and all(isinstance(v, yaml.ScalarNode) for _, v in node.value)


def read_settings(tree: Tree, node: yaml.Node, engine: str | None) -> Configuration | None:
    """The configuration of a mapping of settings; None when the document is something else."""
    items = tree.items(node)
    if not items or any(key in FOREIGN_KEYS for key, _, _ in items) or _is_foreign(items):
        return None
    engine = engine or "vllm"
    configuration = Configuration(tree.source.name, tree.source, engine=engine)
    if engine == "vllm" and re.search(r"(^|[/\\])model\.json$", tree.source.name):
        configuration.typed = configuration.keywords = True
        configuration.usage = "engine"
    seen: dict[str, Entry] = {}
    for key, key_node, value in items:
        entry = tree.entry(str(key), key_node, value)
        name = entry.key.replace("_", "-")
        if name in seen:
            configuration.duplicates.append(entry)
        seen[name] = entry
        configuration.entries.append(entry)
    return configuration


def _is_foreign(items: list[tuple[object, yaml.Node, yaml.Node]]) -> bool:
    """Whether a mapping is some other program's: nested, with lists or of several keys, and few are options of an engine."""
    names = [option_of(str(key)) for key, _, _ in items]
    values = [value.value for _, _, value in items if not isinstance(value, yaml.ScalarNode)]
    nested = any(not isinstance(item, yaml.ScalarNode) for value in values for item in value)
    several = len(items) > 2 or bool(values)
    least = (len(items) + 1) // 2 if nested else max(int(several), len(items) // 4)
    return all(_known(engine, names) < least for engine in ("vllm", "camshaft"))


def _known(engine: str, names: list[str]) -> int:
    """How many of the names are options of some release of an engine."""
    try:
        return sum(options(engine).name(name) is not None for name in names)
    except CamshaftError:
        return 0

"""Environment variables that a manifest or a compose file sets for a container."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import yaml

from .base import EnvSetting
from .nodes import Tree

ENV_KEYS = ("env", "environment", "extraEnv", "extraEnvVars", "envVars")
VARIABLE = re.compile(r"\$\((\w+)\)|\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")


def environment(tree: Tree, nodes: dict[str, yaml.Node]) -> dict[str, EnvSetting]:
    """The variables that a container's own keys set."""
    env: dict[str, EnvSetting] = {}
    runtime = nodes.get("runtime_env")  # Ray's
    given = [nodes.get(key) for key in ENV_KEYS]
    given += [] if runtime is None else [tree.get(runtime, "env_vars")]
    for node in given:
        if isinstance(node, yaml.MappingNode):
            for name, key_node, value in tree.items(node):
                env[str(name)] = _variable(tree, str(name), text_of(value), key_node, value)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                setting = _item(tree, item)
                if setting is not None:
                    env[setting.name] = setting
    return env


def sources(tree: Tree, nodes: dict[str, yaml.Node]) -> tuple[dict[str, EnvSetting], list[str]]:
    """The variables of the ConfigMaps of this text that a container takes whole, and what else it takes."""
    env: dict[str, EnvSetting] = {}
    unread: list[str] = []
    for item in nodes["envFrom"].value if isinstance(nodes.get("envFrom"), yaml.SequenceNode) else ():
        prefix = tree.get(item, "prefix")
        for kind, _, reference in tree.items(item):
            name = tree.get(reference, "name")
            found = (
                _named(tree, "ConfigMap", name.value) if kind == "configMapRef" and name is not None else None
            )
            data = None if found is None else tree.get(found, "data")
            if data is None and name is not None:
                unread.append(f"{'ConfigMap' if kind == 'configMapRef' else 'Secret'} {name.value}")
            for key, node, value in tree.items(data) if data is not None else ():
                called = (prefix.value if prefix is not None else "") + str(key)
                env[called] = EnvSetting(called, text_of(value), tree.place(node))
    files = nodes.get("env_file")
    listed = files.value if isinstance(files, yaml.SequenceNode) else [files]
    unread += [str(node.value) for node in listed if isinstance(node, yaml.ScalarNode)]
    return env, unread


def service_link(tree: Tree) -> EnvSetting | None:
    """The variable by which Kubernetes tells every pod of a Service named vllm, where this text declares one."""
    service = _named(tree, "Service", "vllm")
    links = [tree.get(mapping, "enableServiceLinks") for mapping in _mappings(tree)]
    if service is None or "false" in map(text_of, links):
        return None
    return EnvSetting("VLLM_PORT", "tcp://...", tree.place(service))


def _named(tree: Tree, kind: str, name: str) -> yaml.MappingNode | None:
    """The object of this text that has a kind and a name."""
    for mapping in _mappings(tree):
        about = tree.get(mapping, "metadata")
        called = tree.get(about, "name") if about is not None else None
        if text_of(tree.get(mapping, "kind")) == kind and text_of(called) == name:
            return mapping
    return None


def _mappings(tree: Tree) -> Iterator[yaml.MappingNode]:
    return (mapping for document in tree.documents for mapping, _ in tree.mappings(document))


def _item(tree: Tree, item: yaml.Node) -> EnvSetting | None:
    if isinstance(item, yaml.ScalarNode) and "=" in item.value:
        name, _, value = item.value.partition("=")
        return _variable(tree, name, value, item, item)
    name_node = tree.get(item, "name")
    if not isinstance(name_node, yaml.ScalarNode):
        return None
    value_node = tree.get(item, "value")
    setting = _variable(tree, name_node.value, text_of(value_node), item, item)
    return msgspec.structs.replace(setting, place=tree.place(name_node))


def _variable(tree: Tree, name: str, value: str | None, first: yaml.Node, last: yaml.Node) -> EnvSetting:
    start, end = tree.start(first), tree.end(last)
    if value is not None and VARIABLE.search(value):  # its default, where it has one
        value = VARIABLE.sub(lambda match: match.group(3) or match.group(), value)
        value = None if VARIABLE.search(value) else value
    return EnvSetting(name, value, tree.place(first), tree.source, start, end, "item")


def text_of(node: yaml.Node | None) -> str | None:
    """A scalar's text; None for anything else, and for a template."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    return None if "{{" in node.value else str(node.value)

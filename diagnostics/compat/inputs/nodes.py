"""YAML with places: a thin layer over PyYAML's nodes, which know where they stand, and its fast C parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from ....core.places import Loader, Place
from .base import Entry, Source, UnreadableInput

MAX_DEPTH = 60
# Aliases can make a short text expand without end.
MAX_NODES = 200_000


class Tree:
    """The documents of one YAML text."""

    def __init__(self, source: Source, part: str | None = None) -> None:
        """Read a source, or a `part` of it whose characters stand where they do in the whole."""
        self.source = source
        text = source.text if part is None else part
        # The C parser counts characters after a byte order mark.
        self._base = 1 if text.startswith("\ufeff") else 0
        self._loader = Loader(text[self._base :])
        self.documents: list[yaml.Node] = []
        self._read = 0
        try:
            while self._loader.check_node():
                node = self._loader.get_node()
                if node is not None:
                    self.documents.append(node)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            if re.search(r"\{\{.*\}\}|\{%.*%\}", text):
                raise UnreadableInput(
                    f"{source.name} is a template and no YAML yet: check what it renders to: "
                    "helm template CHART | engine check-flags -"
                ) from None
            raise UnreadableInput(f"{source.name} is not valid YAML: {_one_line(error)}") from None

    def value(self, node: yaml.Node, depth: int = 0) -> Any:
        """The node as plain Python data, read as `yaml.safe_load` reads it (`yes` and `on` are true)."""
        self._read += 1
        if depth > MAX_DEPTH or self._read > MAX_NODES:
            raise UnreadableInput(
                f"{self.source.name} nests or repeats itself beyond what a configuration does"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, depth + 1) for child in node.value]
        return {_key(key): self.value(child, depth + 1) for key, _, child in self.items(node)}

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError, TypeError):
            return node.value

    def items(self, node: yaml.Node) -> list[tuple[Any, yaml.Node, yaml.Node]]:
        """(key, key node, value node) of a mapping, merge keys (`<<`) resolved; empty for other nodes."""
        if not isinstance(node, yaml.MappingNode):
            return []
        merged: list[tuple[Any, yaml.Node, yaml.Node]] = []
        own: list[tuple[Any, yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag == "tag:yaml.org,2002:merge":
                parents = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for parent in parents:
                    if parent is not node and isinstance(parent, yaml.MappingNode):
                        merged += [
                            (self._scalar(k), k, v) for k, v in parent.value if isinstance(k, yaml.ScalarNode)
                        ]
            elif isinstance(key, yaml.ScalarNode):
                own.append((self._scalar(key), key, value))
        names = {_key(key) for key, _, _ in own}
        return [item for item in merged if _key(item[0]) not in names] + own

    def get(self, node: yaml.Node, key: str) -> yaml.Node | None:
        """The value node under `key` of a mapping, or None."""
        return next((value for name, _, value in reversed(self.items(node)) if name == key), None)

    def place(self, node: yaml.Node) -> Place:
        """Where a node begins."""
        return self.source.place(self.start(node))

    def start(self, node: yaml.Node) -> int:
        """Offset of a node's first character in the source."""
        return self._base + node.start_mark.index

    def end(self, node: yaml.Node) -> int:
        """Offset after a node's last character in the source; a block's is that of its last item."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            end = self.end(last[1] if isinstance(last, tuple) else last)
            if end > self.start(node):  # not an alias, whose text stands elsewhere
                return end
        return self._base + node.end_mark.index

    def entry(self, name: str, key: yaml.Node, value: yaml.Node) -> Entry:
        """A key of a mapping as a setting called `name`."""
        start, value_start = self.start(key), self.start(value)
        end = len(self.source.text[: self.end(value)].rstrip())
        if not start < value_start <= max(end, value_start):
            start = value_start = end = 0
        place = self.place(key)
        return Entry(
            name, self.value(value), place, self.source, start=start, value_start=value_start, end=end
        )

    def scalars(self, node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, str]]:
        """Every text below a node, with the key it stands under."""
        for mapping, _ in self.mappings(node):
            for key, _, value in self.items(mapping):
                items = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for item in items:
                    if isinstance(item, yaml.ScalarNode):
                        yield item, str(key)

    def mappings(self, node: yaml.Node) -> Iterator[tuple[yaml.MappingNode, tuple[str, ...]]]:
        """Every mapping below a node (itself first), with the keys it stands under."""
        seen: set[int] = set()
        stack: list[tuple[yaml.Node, tuple[str, ...], int]] = [(node, (), 0)]
        while stack:
            current, path, depth = stack.pop()
            if id(current) in seen or depth > MAX_DEPTH:
                continue
            seen.add(id(current))
            if isinstance(current, yaml.MappingNode):
                yield current, path
                children = [(v, (*path, str(k)), depth + 1) for k, _, v in self.items(current)]
            elif isinstance(current, yaml.SequenceNode):
                children = [(child, path, depth + 1) for child in current.value]
            else:
                continue
            stack.extend(reversed(children))


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bool, type(None))) else str(key)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

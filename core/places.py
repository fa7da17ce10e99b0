"""Reads YAML and remembers where every key stands, so that each complaint can name file, line and column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KeyPath = tuple[str | int, ...]
MAX_BYTES = 4 << 20
MAX_PLACES = 100_000  # aliases can unfold without end


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written. Lines and columns count from 1; line 0 is no line at all."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping: its top-level keys in order as written, and the place of every key and item in it."""

    file: str
    value: Mapping[str, Any]
    places: Mapping[KeyPath, Place]

    def place(self, path: Iterable[str | int]) -> Place:
        """The place of the deepest part of `path` that was written."""
        keys = tuple(path)
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, Place(self.file))


def read_yaml(path: Path, shown: str | None = None) -> Document:
    """The mapping in a YAML file; repeated keys, merge keys and anything but a mapping raise ConfigError.

    `shown` is the file's name in places and complaints, where it is not the path.
    """
    return parse_yaml(read_text(path), shown or str(path))


def read_text(path: Path) -> str:
    """The text of a file that somebody wrote. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: is larger than {MAX_BYTES >> 20} MiB; that is no configuration")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def parse_yaml(text: str, file: str) -> Document:
    """As `read_yaml`, of a text; `file` is the name that complaints give."""
    loader = None
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(file, {}, {})
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{_place(file, node)}: a mapping of keys to values is needed, not a {node.id}")
        places: dict[KeyPath, Place] = {}
        _collect(node, file, (), places, set())
        value = loader.construct_document(node)
        return Document(file, {str(key): item for key, item in value.items()}, places)
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{file}: not valid YAML: {error}") from error
    finally:
        if loader is not None:
            loader.dispose()


def load_yaml(text: str) -> Any:
    """The value of a YAML text, places aside. Raises ValueError, with a reason in one line, for a text that has none."""
    loader = None
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if "&" in text and "*" in text:
            _refuse_cycles(node, set(), set())
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()


def parse_scalar(text: str) -> Any:
    """The value of a short YAML text, such as the right side of `--set key=value`; the text itself if invalid."""
    try:
        return load_yaml(text)
    except ValueError:
        return text


def _place(file: str, node: yaml.Node) -> Place:
    return Place(file, node.start_mark.line + 1, node.start_mark.column + 1)


def _refuse_cycles(node: yaml.Node, around: set[int], done: set[int]) -> None:
    """Raises ValueError for an alias that contains itself; `around` are the nodes that hold `node`."""
    if id(node) in around:
        raise ValueError("an alias that contains itself")
    if isinstance(node, yaml.ScalarNode) or id(node) in done:
        return
    around.add(id(node))
    for part in node.value:
        for inner in part if isinstance(part, tuple) else (part,):
            _refuse_cycles(inner, around, done)
    around.discard(id(node))
    done.add(id(node))


def _collect(
    node: yaml.Node, file: str, path: KeyPath, places: dict[KeyPath, Place], open_nodes: set[int]
) -> None:
    """Notes the place of every key and item below `node`; refuses what readers would silently resolve."""
    if len(places) > MAX_PLACES:
        raise ConfigError(f"{file}: more than {MAX_PLACES:,} keys and items once its aliases are unfolded")
    if id(node) in open_nodes:
        raise ConfigError(f"{_place(file, node)}: an alias that contains itself")
    if not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        return
    open_nodes.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            places[(*path, index)] = _place(file, child)
            _collect(child, file, (*path, index), places, open_nodes)
    else:
        for key, child in node.value:
            place = _place(file, key)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{place}: a key must be a plain name")
            if key.tag == "tag:yaml.org,2002:merge":
                raise ConfigError(f"{place}: YAML merge keys are not read here; write the keys out")
            inner = (*path, key.value)
            if inner in places:
                raise ConfigError(f"{place}: {key.value}: given twice; first on line {places[inner].line}")
            places[inner] = place
            _collect(child, file, inner, places, open_nodes)
    open_nodes.discard(id(node))

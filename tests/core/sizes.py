"""How large every container is that objects of the product hold, to be compared before and after some work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

_CONTAINERS = (Mapping, Set, list, deque)


def sizes_of(root: Any, name: str) -> dict[str, int]:
    """Number of items of each dict, list, set and deque that can be reached from `root` through attributes of
    the product's own objects, by path. Arrays, tensors and objects of other packages are not looked into.
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    todo = [(name, root)]
    while todo:
        path, value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _CONTAINERS):
            found[path] = len(value)
        todo += _parts(path, value)
    return found


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r:.40}]", item) for key, item in value.items())
    elif isinstance(value, (list, deque, tuple)):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value) if not _plain(item))
    elif type(value).__module__.partition(".")[0] == "camshaft":
        names = list(getattr(value, "__dict__", ()))
        names += [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        yield from ((f"{path}.{each}", getattr(value, each)) for each in names if hasattr(value, each))


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, str, bytes))

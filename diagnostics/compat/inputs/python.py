"""Python launch scripts: keyword arguments of `LLM(...)` and `EngineArgs(...)`, and commands, read with `ast` and never run.

A name counts for what it stands for where the script assigns it once, to something written out; whatever else only
a run could tell is kept as unknown.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from .base import Configuration, Entry, EnvSetting, Source, UnreadableInput, Word
from .commands import CommandReader, align, find_entry, holds_server

Node = ast.expr | ast.keyword
# An argument's name (None for `**mapping`), where it stands, and its value.
Given = tuple[str | None, Node, ast.expr]
Usage = Literal["api_server", "llm", "engine"]
# The classes of vLLM that take the engine's arguments as keywords; the first positional one is the model.
CLASSES = frozenset({"LLM", "EngineArgs", "AsyncEngineArgs"})
# Ray's classes that hand their `engine_kwargs` to the engine.
RAY = frozenset({"LLMConfig", "LLMServingArgs", "vLLMEngineProcessorConfig"})
# Functions of the standard library that run a command written as one text.
SHELLS = frozenset(
    {"system", "popen", "Popen", "run", "call", "check_call", "check_output", "create_subprocess_shell"}
)
# Classes of vLLM that hold what is asked of a request.
PARAMETERS = frozenset({"SamplingParams", "PoolingParams", "GuidedDecodingParams", "StructuredOutputsParams"})
# Arguments of these classes that no option of the command sets.
NOT_OPTIONS = frozenset({"enable_mm_processor_stats", "mamba_config", "model_weights", "quantization_config"})


class _Unknown(Exception):
    """An expression's value is only known when the script runs."""


def read_python(source: Source, label: str) -> list[Configuration]:
    """The engines and servers that a script starts, in order. Raises UnreadableInput for what is no Python."""
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        where = f", line {line}" if line else ""
        raise UnreadableInput(f"{label}{where}: not Python that can be read ({error})") from None
    reader = _Script(source, label, tree)
    found = [item for node in _in_order(tree) for item in reader.configurations(node)]
    if len(found) > 1:
        for configuration in found:
            configuration.label = f"{label}:{configuration.start_place.line}"
    if found and (beside := _not_checked(tree)):
        found[0].notes.append(f"not checked: {', '.join(beside)}")
    return found


def _not_checked(tree: ast.AST) -> list[str]:
    """What else of vLLM a script leans on: modules that it imports from, and what it asks of each request."""
    told: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
            told[f"imports from {node.module}"] = None
        elif isinstance(node, ast.Call) and _called(node) in PARAMETERS and node.keywords:
            told[f"arguments of {_called(node)}"] = None
    return list(told)


def _in_order(tree: ast.AST) -> Iterator[ast.expr]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.List | ast.Tuple)]
    yield from sorted(nodes, key=lambda node: (node.lineno, node.col_offset))


def imports_vllm(tree: ast.AST) -> bool:
    """Whether a script imports vLLM."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.split(".")[0] == "vllm" for name in names)


class _Script:
    def __init__(self, source: Source, label: str, tree: ast.Module) -> None:
        self._source = source
        self._label = label
        self._vllm = imports_vllm(tree)
        self._names = _assigned_once(tree)
        self._uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        self._env = dict(self._environment(tree))

    def configurations(self, node: ast.expr) -> list[Configuration]:
        """What one call or list of words starts."""
        if isinstance(node, ast.List | ast.Tuple):
            return self._words(node)
        if not isinstance(node, ast.Call):
            return []
        if self._vllm and _called(node) in CLASSES:
            return [self._keywords(node)]
        if _called(node) in RAY:
            kwargs = next(
                (keyword.value for keyword in node.keywords if keyword.arg == "engine_kwargs"), None
            )
            usage = "api_server" if _called(node) == "LLMConfig" else "engine"  # Ray serves it itself
            return [] if kwargs is None else [self._configured([(None, kwargs, kwargs)], usage)]
        return self._text(node.args[0]) if node.args and _called(node) in SHELLS else []

    def _keywords(self, node: ast.Call) -> Configuration:
        usage = "llm" if _called(node) == "LLM" else "engine"
        given: list[Given] = [("model", item, item) for item in node.args[:1]]
        given += [(keyword.arg, keyword, keyword.value) for keyword in node.keywords]
        found = self._configured(given, usage)
        found.editable = True
        if usage == "llm":
            found.unnamed = [self._word(item) for item in node.args[1:]]
        return found

    def _configured(self, given: list[Given], usage: Usage) -> Configuration:
        found = Configuration(
            self._label, self._source, usage=usage, env=dict(self._env), typed=True, editable=False
        )
        found.keywords = True
        for name, at, value in given:
            if name is not None:
                self._add(found, name, at, value)
                continue
            mapping = self._mapping(value)
            if mapping is None:
                found.unread = (*found.unread, f"**{ast.unparse(value)}")
            own = not isinstance(value, ast.Name) or self._uses[value.id] == 2  # set, and used here alone
            for key, (written, item) in (mapping or {}).items():
                self._add(found, key, at, item, written if own else None)
        return found

    def _add(
        self, found: Configuration, name: str, at: Node, value: ast.expr, written: Node | None = None
    ) -> None:
        """Note an argument; `written` is the key of a `**mapping` that nothing else uses."""
        if name in NOT_OPTIONS:
            found.notes.append(f"{name} was not checked: no option of the command stands for it")
        else:
            if isinstance(at, ast.keyword) and at.value is value:
                written = at
            found.entries.append(self._entry(name, at, value, written))

    def _entry(self, name: str, at: Node, node: ast.expr, written: Node | None) -> Entry:
        opaque = False
        try:
            value = self._value(node)
        except _Unknown:
            value, opaque = ast.unparse(node), True
        span = (0, 0, 0)
        if written is not None:
            span = (self._offset(written), self._offset(node), self._end(node))
        place = self._source.place(self._offset(at))
        return Entry(name.replace("_", "-"), value, place, self._source, opaque, *span)

    def _words(self, node: ast.List | ast.Tuple) -> list[Configuration]:
        """A list of words such as `["vllm", "serve", MODEL, "--port", "8000"]`."""
        words = [self._word(item) for item in node.elts]
        entry = find_entry(words)
        if entry is None or entry[0] > 4:
            return []
        begin, engine, point = entry
        module = words[begin - 1] if point == "api_server" else None
        return [
            Configuration(
                self._label,
                self._source,
                engine,
                point,
                words[begin:],
                env=dict(self._env),
                module=module,
                editable=False,
            )
        ]

    def _word(self, node: ast.expr) -> Word:
        opaque = isinstance(node, ast.Starred)
        try:
            text = str(self._value(node))
        except _Unknown:
            text, opaque = ast.unparse(node), True
        start = self._offset(node)
        return Word(text, self._source.place(start), self._source, start, self._end(node), opaque)

    def _text(self, node: ast.expr) -> list[Configuration]:
        """A command written as one text (`os.system("vllm serve ...")`)."""
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and holds_server(node.value)):
            return []
        reader = CommandReader(self._source, self._label, list(self._env.values()))
        found = reader.read(align(node.value, self._source.text, self._offset(node) + 1, self._end(node) - 1))
        for configuration in found:
            configuration.editable = False
        return found

    def _environment(self, tree: ast.Module) -> Iterator[tuple[str, EnvSetting]]:
        """Variables that the script sets: `os.environ["X"] = ...`, `setdefault` and `update`, and Ray's `env_vars`."""
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Subscript(value=where, slice=key)], value=value):
                    pairs = [(key, value)] if _is_environ(where) else []
                case ast.Call(func=ast.Attribute(value=where, attr="setdefault"), args=[key, value]):
                    pairs = [(key, value)] if _is_environ(where) else []
                case ast.Call(func=ast.Attribute(value=where, attr="update"), args=[ast.Dict() as mapping]):
                    pairs = _pairs(mapping) if _is_environ(where) else []
                case ast.keyword(arg="env_vars", value=ast.Dict() as mapping):
                    pairs = _pairs(mapping)
                case ast.Dict():
                    inner = [value for key, value in _pairs(node) if _is_text(key, "env_vars")]
                    pairs = [pair for value in inner if isinstance(value, ast.Dict) for pair in _pairs(value)]
                case _:
                    continue
            for key, value in pairs:
                if isinstance(key, ast.Constant):
                    yield str(key.value), self._setting(key, value)

    def _setting(self, key: ast.Constant, node: ast.expr) -> EnvSetting:
        try:
            value: str | None = str(self._value(node))
        except _Unknown:
            value = None
        return EnvSetting(str(key.value), value, self._source.place(self._offset(key)))

    def _mapping(self, node: ast.expr) -> dict[str, tuple[Node, ast.expr]] | None:
        """The keys of a `**mapping` that is written out: where each stands, and the expression of its value."""
        seen: set[str] = set()
        while isinstance(node, ast.Name) and node.id in self._names and node.id not in seen:
            seen.add(node.id)
            node = self._names[node.id]
        if isinstance(node, ast.Dict):
            keys = [key for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            if len(keys) == len(node.keys):
                return {str(key.value): (key, value) for key, value in zip(keys, node.values, strict=True)}
        if not isinstance(node, ast.Call) or _called(node) != "dict" or node.args:
            return None
        if not all(keyword.arg for keyword in node.keywords):
            return None
        return {str(keyword.arg): (keyword, keyword.value) for keyword in node.keywords}

    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        if depth > 20:
            raise _Unknown
        match node:
            case ast.Name(id=name) if name in self._names:
                return self._value(self._names[name], depth + 1)
            case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
                pairs = zip(keys, values, strict=True)
                return {
                    self._value(k, depth + 1): self._value(v, depth + 1) for k, v in pairs if k is not None
                }
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._value(item, depth + 1) for item in items]
            case ast.Call(args=[]) if _called(node) == "dict" and all(k.arg for k in node.keywords):
                return {k.arg: self._value(k.value, depth + 1) for k in node.keywords}
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise _Unknown from None

    def _offset(self, node: Node) -> int:
        return self._source.offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr) -> int:
        return self._source.offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


def _called(node: ast.Call) -> str:
    """The last part of the name that a call calls."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _pairs(node: ast.Dict) -> list[tuple[ast.expr | None, ast.expr]]:
    return list(zip(node.keys, node.values, strict=True))


def _is_text(node: ast.expr | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def _assigned_once(tree: ast.Module) -> Mapping[str, ast.expr]:
    """Names that the script binds exactly once, to an expression."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                found.setdefault(name, []).append(value)
            case ast.AugAssign(target=ast.Name(id=name)) | ast.NamedExpr(target=ast.Name(id=name)):
                found.setdefault(name, []).append(None)
            case ast.For(target=ast.Name(id=name)) | ast.arg(arg=name):
                found.setdefault(name, []).append(None)
            case _:
                pass
    return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0] is not None}

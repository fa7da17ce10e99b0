"""Reads a file, a command line or standard input: the kind is found from the name and the content.

The readers of shell text and manifests are imported when an input needs them: a settings file does not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .base import DYNAMO, SERVER, Configuration, NoServer, Source, UnreadableInput
from .files import is_flat, read_settings
from .nodes import Tree

PYTHON = re.compile(r"^(?:from vllm|import vllm)\b.*$", re.M)
COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.M)
MAX_BYTES = 4 * 2**20
COMMAND_LINE = "command line"
STANDARD_INPUT = "standard input"


def read_command(text: str, name: str = COMMAND_LINE) -> list[Configuration]:
    """The servers of one command line. Raises UnreadableInput when it starts none, or no shell would run it."""
    from .lexer import characters, open_quote

    source = Source(name, text)
    quote = open_quote(characters(text))
    if quote is not None:
        raise UnreadableInput(f"{source.place(quote)}: the quote that opens here is never closed")
    found = _commands(source)
    if not found:
        raise UnreadableInput(
            _other(f"the {name}", text)
            or f"the {name} starts no server this checker knows; expected one with `vllm serve`, "
            "`python -m vllm.entrypoints.openai.api_server`, `engine serve`, or `docker run` of a vLLM image"
        )
    return [_complete(configuration, Path()) for configuration in found]


def read_again(text: str, of: Configuration) -> list[Configuration]:
    """The configurations in a new text of a configuration's source."""
    name = of.source.name
    if name.startswith(COMMAND_LINE):
        return read_command(text, name)
    return read_text(text, name, Path(name).parent, of.engine)


def read_path(path: Path, engine: str | None = None) -> list[Configuration]:
    """The configurations in a file. Raises UnreadableInput when it cannot be read or holds none."""
    try:
        text = _text(path)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UnreadableInput(f"{path} is not text in UTF-8") from None
    return read_text(text, str(path), path.parent, engine)


def _text(path: Path) -> str:
    """A file's text, its line ends as they are. Raises OSError, UnicodeDecodeError, or UnreadableInput for a long one."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)  # a device has no size and no end
    if len(data) > MAX_BYTES:
        raise UnreadableInput(f"{path} is larger than {MAX_BYTES // 2**20} MiB: check its documents apart")
    return data.decode("utf-8-sig")


def read_text(
    text: str, name: str, folder: Path | None = None, engine: str | None = None
) -> list[Configuration]:
    """The configurations in a text called `name`; its kind is found from the name and the content."""
    if not text.strip():
        raise UnreadableInput(f"{name} is empty")
    source = Source(name, text)
    base = os.path.basename(name).lower()
    suffix = os.path.splitext(base)[1]
    if base.startswith(("dockerfile", "containerfile")) or suffix == ".dockerfile":
        from .dockerfile import read_dockerfile

        found = read_dockerfile(source, name)
    elif suffix in (".yaml", ".yml", ".json"):
        found = _read_yaml(source, engine)
    elif suffix in (".service", ".container"):
        from .scripts import read_unit

        found = read_unit(source, name)
    elif suffix == ".py" or re.match(r"#!.*python", text) or (not suffix and _is_python(text)):
        from .python import read_python

        found = read_python(source, name)
    elif suffix in (".sh", ".bash", ".zsh", ".env") or text.startswith("#!"):
        found = _commands(source)
    elif suffix == ".ipynb":
        from .notebooks import read_notebook

        found = read_notebook(source, name)
    else:
        found = _read_either(source, engine)
    if not found:
        other = _other(name, text)
        if other is not None:
            raise UnreadableInput(other)
        raise NoServer(
            f"{name} starts no server this checker knows: no `vllm serve`, no vLLM API server module, "
            "no `engine serve`, no container of a vLLM image with arguments"
            + (", no `LLM(...)` or `EngineArgs(...)` of vLLM" if suffix in (".py", ".ipynb") else "")
        )
    return [_complete(item, folder or Path()) for item in found]


# What people run beside the servers this checker knows: the words, and whose they are.
OTHERS = (
    (r"sglang\.launch_server|\bsglang\s+serve\b|\bsglang_router\b", "SGLang's server"),
    (r"\btrtllm-serve\b|tensorrt_llm\.serve", "TensorRT-LLM's server"),
    (r"\btext-generation-launcher\b", "Text Generation Inference"),
    (r"\blmdeploy\s+serve\b", "LMDeploy's server"),
    (r"\bllama-server\b|llama_cpp\.server", "llama.cpp's server"),
    (r"\bollama\s+(serve|run)\b", "Ollama"),
    (r"\bvllm\s+bench\b|\bbenchmark_(serving|throughput|latency)\b", "vLLM's benchmark, a client"),
    (r"\bvllm\s+(run-batch|chat|complete|collect-env|launch)\b", "a command of vLLM other than `vllm serve`"),
)


def _other(name: str, text: str) -> str | None:
    """How a text is refused that runs something else that people run beside these servers."""
    told = COMMENT.sub("", text)
    found = " and ".join(who for pattern, who in OTHERS if re.search(pattern, told))
    if not found:
        return None
    return f"{name} runs {found}: nothing here knows its options; only servers of vLLM and of this engine are checked"


def _is_python(text: str) -> bool:
    """Whether a text of unknown kind is a Python script of vLLM's, and no shell text that holds one."""
    if not PYTHON.search(text):
        return False
    import ast

    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _read_either(source: Source, engine: str | None) -> list[Configuration]:
    """A text of unknown kind: a command if one is found outside YAML, else YAML."""
    try:
        tree = Tree(source)
        structured = bool(tree.documents) and any(tree.items(node) for node in tree.documents)
    except UnreadableInput:
        structured = False
    if structured:
        return _read_yaml(source, engine)
    return _commands(source)


def _commands(source: Source) -> list[Configuration]:
    from .scripts import read_commands

    return read_commands(source, source.name)


def _read_yaml(source: Source, engine: str | None) -> list[Configuration]:
    tree = Tree(source)
    if not tree.documents:
        raise UnreadableInput(f"{source.name} is empty")
    only = tree.documents[0] if len(tree.documents) == 1 else None
    if only is None or not is_flat(only) or SERVER.search(source.text):
        from .manifests import ManifestReader

        manifest = ManifestReader(tree, source.name).read()
        if manifest:
            return manifest
    if only is None:
        return []
    settings = read_settings(tree, only, engine)
    if settings is not None:
        return [settings]
    return _commands(source) if isinstance(tree.value(only), str) else []


def _complete(configuration: Configuration, folder: Path) -> Configuration:
    """Leave a front end's own options out, and read the file a command names with `--config FILE`.

    A file that cannot be read is noted.
    """
    if configuration.module is not None and configuration.module.text == DYNAMO:
        from .dynamo import adopt

        adopt(configuration)
    words = configuration.words
    for index, word in enumerate(words[:-1]):
        if word.text != "--config":
            continue
        value = words[index + 1]
        path = folder / value.text
        if configuration.engine != "vllm" and not path.is_file():
            continue  # the name of a preset
        try:
            if value.opaque or not path.is_file() or path.stat().st_size > MAX_BYTES:
                raise OSError
            tree = Tree(Source(str(path), _text(path)))
            settings = (
                read_settings(tree, tree.documents[0], configuration.engine) if tree.documents else None
            )
        except (OSError, UnicodeDecodeError):
            configuration.unread = (*configuration.unread, value.text)
            continue
        if settings is None:
            raise UnreadableInput(f"{path} holds no settings: expected `key: value` lines")
        configuration.entries += settings.entries
        configuration.duplicates += settings.duplicates
    return configuration

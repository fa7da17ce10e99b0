"""From a configuration to the words a release's parser sees: YAML keys, `_` for `-`, dotted JSON keys, `-O3`.

Each argument remembers what it was made of, so that a finding can point at the line a person wrote.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Literal

import msgspec

from ....core.places import Place
from ..inputs.base import Configuration, Entry, Word
from ..releases.dialect import Dialect
from ..releases.table import Flag, Table, name_of, negative_of, option_of
from .conversion import BadValue, human_readable

Origin = Word | Entry


class Argument(msgspec.Struct, frozen=True):
    """One argument as the parser sees it, and the words or keys it came from."""

    text: str
    origins: tuple[Origin, ...]
    opaque: bool = False

    @property
    def place(self) -> Place:
        """Where the first of its origins stands."""
        return self.origins[0].place


class Trap(msgspec.Struct, frozen=True):
    """Something the reading of the arguments itself does to a setting."""

    kind: Literal[
        "false_dropped",
        "false_literal",
        "false_honoured",
        "true_literal",
        "null_value",
        "python_text",
        "empty_list",
        "duplicate_key",
        "config_equals",
        "dotted_unsupported",
        "dotted_o",
    ]
    name: str
    origin: Origin


class Arguments(msgspec.Struct):
    """The arguments of one configuration at one release, and the traps met on the way."""

    arguments: list[Argument] = []
    traps: list[Trap] = []


def build(configuration: Configuration, table: Table, dialect: Dialect) -> Arguments:
    """The arguments in the order in which the release parses them: the model, the settings file, the command."""
    built = Arguments()
    words = _without_config(configuration, built)
    if configuration.entry_point == "serve" and words and not words[0].text.startswith("-"):
        built.arguments.append(Argument(words[0].text, (words[0],), words[0].opaque))
        words = words[1:]
    for written in configuration.entries:
        entry = _compilation_level(written, table) if configuration.usage == "llm" else written
        if configuration.keywords and says_nothing(entry) and _is_misnamed(entry, table):
            # No word of a command, but Python refuses a name that it does not know with any value.
            built.arguments.append(Argument("--" + entry.key, (entry,)))
            continue
        _entry(entry, table, dialect, built, configuration.typed or dialect.yaml_false == "typed")
    built.traps += [Trap("duplicate_key", entry.key, entry) for entry in configuration.duplicates]
    built.arguments += [Argument(word.text, (word,), word.opaque) for word in words]
    built.arguments = _optimization([_dashes(a, dialect) for a in built.arguments], dialect, built)
    built.arguments = _dotted(built.arguments, dialect, built)
    return built


def says_nothing(entry: Entry) -> bool:
    """Whether a setting leaves its option as if it were not given."""
    return entry.value is None or entry.value is False


def _is_misnamed(entry: Entry, table: Table) -> bool:
    flag = table.find("--" + entry.key)
    return flag is None or flag.dest != name_of(entry.key)


def _compilation_level(entry: Entry, table: Table) -> Entry:
    """`LLM(compilation_config=3)` as the object the class makes of the level, which the command does not take."""
    flag = table.find("--" + entry.key)
    if flag is None or flag.name != "--compilation-config" or type(entry.value) is not int:
        return entry
    key = "mode" if "mode" in flag.nested else "level"
    return msgspec.structs.replace(entry, value={key: entry.value})


def _without_config(configuration: Configuration, built: Arguments) -> list[Word]:
    """The command's words without `--config FILE`, whose keys stand in the entries."""
    if configuration.engine != "vllm":
        return _own_words(configuration.words)
    words: list[Word] = []
    skip = False
    for word in configuration.words:
        if skip:
            skip = False
        elif word.text == "--config":
            skip = True
        else:
            if word.text.startswith("--config="):
                built.traps.append(Trap("config_equals", "--config", word))
            words.append(word)
    return words


def _own_words(words: list[Word]) -> list[Word]:
    """`engine serve`'s words: `--set key=value` as `--key=value`, and without what is no setting."""
    found: list[Word] = []
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif word.text == "--set" and index + 1 < len(words):
            found.append(msgspec.structs.replace(words[index + 1], text="--" + words[index + 1].text))
            skip = True
        elif word.text == "--config":
            skip = True
        elif word.text != "--skip-flag-check":
            found.append(word)
    return found


def _entry(entry: Entry, table: Table, dialect: Dialect, built: Arguments, typed: bool) -> None:
    """What the settings file's loader makes of one key; `typed` loaders take values as YAML reads them."""
    name = "--" + entry.key
    value = entry.value
    flag = table.find(name)
    if entry.opaque:
        built.arguments += [Argument(name, (entry,)), Argument(str(value), (entry,), opaque=True)]
        return
    if isinstance(value, bool) and not (typed and flag is not None and _takes_text(flag)):
        _boolean(entry, value, table, dialect, built, typed)
        return
    if value is None and typed:
        return
    texts: list[str]
    if isinstance(value, list) and dialect.yaml_list == "words":
        if not value:
            built.traps.append(Trap("empty_list", name, entry))
            return
        texts = [str(item) for item in value]
    elif isinstance(value, dict) and typed and flag is not None and flag.parse == "key_values":
        texts = [",".join(f"{key}={item}" for key, item in value.items())]
    elif isinstance(value, dict) and (typed or dialect.yaml_mapping == "json"):
        texts = [json.dumps(value, default=str)]
    else:
        if isinstance(value, (dict, list)) and not _reads_python(name, table, dialect):
            built.traps.append(Trap("python_text", name, entry))
        if value is None:
            built.traps.append(Trap("null_value", name, entry))
        texts = [str(value)]
    built.arguments.append(Argument(name, (entry,)))
    built.arguments += [Argument(text, (entry,), opaque="{{" in text) for text in texts]


def _takes_text(flag: Flag) -> bool:
    """Whether an option has a value even where that is true or false."""
    return flag.kind == "value" and flag.parse != "optional_value"


def _reads_python(name: str, table: Table, dialect: Dialect) -> bool:
    """Whether an option reads what Python prints, as --compilation-config did for a while."""
    flag = table.find(name)
    return dialect.compilation == "python" and flag is not None and flag.name == "--compilation-config"


def _boolean(
    entry: Entry, value: bool, table: Table, dialect: Dialect, built: Arguments, typed: bool
) -> None:
    name = "--" + entry.key
    flag = table.find(name)
    literal = dialect.yaml_false == "literal" and not typed
    if dialect.yaml_false == "store_boolean" and flag is not None and flag.kind == "store_boolean":
        literal = entry.key == flag.dest
    if literal:
        built.arguments += [Argument(name, (entry,)), Argument(str(value), (entry,))]
        if flag is None or flag.kind in ("store_true", "store_false", "boolean_optional"):
            built.traps.append(Trap("true_literal" if value else "false_literal", name, entry))
        return
    if value:
        built.arguments.append(Argument(name, (entry,)))
        return
    negative = negative_of(option_of(entry.key) if typed else f"--{entry.key}")
    exact = flag is not None and negative in flag.negatives
    if exact and (typed or dialect.yaml_false == "negated"):
        built.arguments.append(Argument(negative, (entry,)))
        if not typed:
            built.traps.append(Trap("false_honoured", name, entry))
    elif not typed:
        built.traps.append(Trap("false_dropped", name, entry))


def _dashes(argument: Argument, dialect: Dialect) -> Argument:
    """`--max_num_seqs` as `--max-num-seqs`; keys after a dot and values keep their underscores.

    The first releases with dotted keys (`long`) rewrote the keys as well.
    """
    text = argument.text
    if not text.startswith("--") or "_" not in text:
        return argument
    match = re.match(r"--[^=\s]*" if dialect.dotted == "long" else r"--[^.=\s]*", text)
    head = match.group() if match else ""
    return Argument(head.replace("_", "-") + text[len(head) :], argument.origins, argument.opaque)


def _optimization(arguments: list[Argument], dialect: Dialect, built: Arguments) -> list[Argument]:
    """`-O3`, `-O=3`, `-O 3` and `-O.key` as the release rewrites them."""
    if dialect.optimization == "plain":
        return arguments
    out: list[Argument] = []
    for index, argument in enumerate(arguments):
        text = argument.text
        following = arguments[index + 1].text if index + 1 < len(arguments) else ""
        if text.startswith("-O.") and dialect.optimization != "flag":
            if dialect.optimization == "flag_and_dots":
                built.traps.append(Trap("dotted_o", "-O", argument.origins[0]))
                argument = Argument("-cc" + text[2:], argument.origins, argument.opaque)
            out.append(argument)
        elif text.startswith("-O") and len(text) > 2:
            if text.startswith("-O.") and dialect.optimization == "flag":
                built.traps.append(Trap("dotted_o", "-O", argument.origins[0]))
            value = text[3:] if text[2] == "=" else text[2:]
            if dialect.optimization in ("level", "mode"):
                out.append(Argument(f"-O.{dialect.optimization}={value}", argument.origins, argument.opaque))
            else:
                out += [Argument("--optimization-level", argument.origins), Argument(value, argument.origins)]
        elif text == "-O" and following in ("0", "1", "2", "3"):
            name = "--optimization-level" if "flag" in dialect.optimization else f"-O.{dialect.optimization}"
            out.append(Argument(name, argument.origins))
        else:
            out.append(argument)
    return out


def _dotted(arguments: list[Argument], dialect: Dialect, built: Arguments) -> list[Argument]:
    """Options with keys after a dot, merged into one JSON argument for each option, put last."""
    out: list[Argument] = []
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[str, list[Origin]] = {}
    skip = False
    for index, argument in enumerate(arguments):
        if skip:
            skip = False
            continue
        name, equals, value = argument.text.partition("=")
        prefix = "--" if dialect.dotted in ("long", "text") else "-"
        if not re.match(r"--?[A-Za-z]", name) or "." not in name or " " in name:
            out.append(argument)
            continue
        if dialect.dotted == "none" or not name.startswith(prefix):
            if name.startswith("--"):
                built.traps.append(Trap("dotted_unsupported", name.split(".")[0], argument.origins[0]))
            out.append(argument)
            continue
        used = list(argument.origins)
        if not equals and index + 1 < len(arguments):
            value = arguments[index + 1].text
            used += arguments[index + 1].origins
            skip = True
        option, *keys = name.removesuffix("+").split(".")
        _merge(merged.setdefault(option, {}), keys, _dotted_value(value, name.endswith("+"), dialect))
        origins.setdefault(option, []).extend(used)
    for option, value in merged.items():
        where = tuple(origins[option])
        out += [Argument(option, where), Argument(json.dumps(value), where)]
    return out


def _dotted_value(text: str, appends: bool, dialect: Dialect) -> Any:
    if appends:
        return text.split(",")
    if dialect.dotted in ("long", "text"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if dialect.dotted == "sizes":
        with contextlib.suppress(BadValue):
            return human_readable(text)
    return text


def _merge(target: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        below = target.get(key)
        if not isinstance(below, dict):
            below = target[key] = {}
        target = below
    last = keys[-1]
    if isinstance(value, list) and isinstance(target.get(last), list):
        target[last] += value
    else:
        target[last] = value

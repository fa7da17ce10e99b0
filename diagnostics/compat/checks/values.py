"""Findings about values: refused by the parser, missing, given to a switch, gone, or belonging to no option."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ....core.places import Place
from ..facts.model import model_facts
from ..inputs.base import Entry, Word
from ..parsing.arguments import Argument
from ..parsing.conversion import LEVELS
from ..parsing.parser import Misuse, Use
from ..releases.changes import ValueChange
from ..releases.names import NAMED
from ..releases.table import Flag
from ..releases.versions import Version, parse
from .context import Context
from .findings import Edit, Finding
from .remedies import quoted, remedy
from .words import instead, shortened


def refused(context: Context, misuse: Misuse) -> Finding:
    """A value, or its absence, that the target's parser refuses."""
    flag = misuse.flag
    name = flag.name if flag else misuse.spelled
    given = " ".join(value.text for value in misuse.values)
    common = common_parts(context, misuse)
    if misuse.kind == "ambiguous":
        options = ", ".join(sorted(set(misuse.candidates)))
        return Finding(
            code="FL-12",
            change="value_syntax",
            message=f"{misuse.spelled} is ambiguous at {context.target}: it could be {options}.",
            fix="Write the option in full.",
            **common,
        )
    if misuse.kind == "missing_value" or flag is None:
        going = context.changes.options.get(name) if flag is not None and flag.deprecated else None
        fix, edits = remedy(context, going, misuse) if going else (f"{name} VALUE", ())
        return Finding(
            code="FL-11",
            change="value_syntax",
            message=f"{name} needs a value at {context.target} and has none.",
            fix=fix,
            edits=edits,
            **common,
        )
    if misuse.kind == "explicit_value":
        return switch_value(context, misuse, common)
    gone = context.changes.value_gone(name, given, context.target)
    if gone is not None:
        return left(gone, misuse.option.place)
    if misuse.kind == "bad_choice":
        return _bad_choice(context, misuse, given, common)
    return Finding(
        code="FL-08",
        change="value_syntax",
        message=f"{name} does not take {given!r} at {context.target}: {misuse.detail}.",
        fix=_written_fix(misuse.option.origins[0], flag) or _typed_fix(flag, given),
        **common,
    )


def _written_fix(origin: Word | Entry, flag: Flag) -> str | None:
    """How a settings file gives a list or a mapping to an option of JSON, which its loader hands on as other words."""
    if isinstance(origin, Word) or "json" not in flag.type or not isinstance(origin.value, (list, dict)):
        return None
    return f"Write `{origin.key}: '{json.dumps(origin.value, default=str)}'`."


# A size as other programs take it; vLLM's human_readable_int takes one letter behind the number.
SIZE = re.compile(r"(\d+)\s*([KMGT])i?B?", re.I)


def _typed_fix(flag: Flag, given: str) -> str:
    """How a value of the option's type is written."""
    size = SIZE.fullmatch(given.strip())
    if size and (flag.parse or "").startswith("human_readable"):
        return f"Write {size[1]}{size[2]}: k, m, g and t count in thousands, K, M, G and T in 1,024s."
    pairs = [item.partition("=") for item in given.split(",")]
    if "json" in flag.type and all(equals for _, equals, _ in pairs):
        values = {name.strip(): int(v) if v.strip().isdigit() else v.strip() for name, _, v in pairs}
        return f"Write {quoted(flag.name, values)}."
    if flag.name == "--compilation-config" and given in LEVELS:
        return f"Write {quoted(flag.name, {'mode' if 'mode' in flag.nested else 'level': int(given)})}."
    if "json" in flag.type:
        return "Give valid JSON, quoted as one word."
    return {"int": "Give a whole number.", "float": "Give a number."}.get(
        flag.type, f"Give a value of type {flag.type}."
    )


def common_parts(context: Context, misuse: Misuse) -> dict[str, Any]:
    """What every finding about a refused value has in common."""
    flag = misuse.flag
    return {
        "severity": "error",
        "place": misuse.option.place,
        "flags": (flag.name if flag else misuse.spelled,),
        "evidence": f"{context.target} {flag.evidence}" if flag else f"{context.target} flag table",
        "stops": True,
    }


def switch_value(context: Context, misuse: Misuse, common: dict[str, Any]) -> Finding:
    """`--enable-x=False` where only `--enable-x` and `--no-enable-x` are taken."""
    flag = misuse.flag
    assert flag is not None  # only a known option can refuse an explicit value
    given = misuse.values[0].text if misuse.values else misuse.detail
    blank = " " if misuse.kind == "stray_word" else "="
    off = given.strip().lower() in ("false", "0", "no", "off")
    if off and flag.off:
        fix, edits = (
            f"Write {flag.off} (the {blank.strip()}{given} form is refused).",
            (Edit("rename", flag.name, flag.off, True),),
        )
    elif off:
        fix, edits = f"Delete {flag.name}; it is off unless given.", (Edit("unset", flag.name),)
    else:
        fix, edits = f"Write {flag.name} alone.", (Edit("set", flag.name, value=True),)
    return Finding(
        code="FL-10",
        change="value_syntax",
        message=f"{flag.name}{blank}{given} is refused at {context.target}: the option is a switch and takes no value.",
        fix=fix,
        edits=edits,
        **common,
    )


def left(gone: ValueChange, place: Place, shown: str | None = None, env: tuple[str, ...] = ()) -> Finding:
    """A value whose feature was taken out of the release, of an option or of the variable in `env`."""
    flag = gone.flag.partition(".")[0]
    whole = gone.rename and flag == gone.flag and not env
    return Finding(
        code="FL-18",
        severity="error",
        change="removed",
        message=f"{shown or gone.flag} {gone.value} is not in the release from {gone.gone} on: {gone.why}.",
        place=place,
        flags=() if env else (flag,),
        env=env,
        fix=gone.fix,
        evidence=gone.evidence,
        stops=True,
        edits=(Edit("set", flag, value=gone.rename, safe=False),) if whole else (),
    )


def choice_history(gone: Version | None, comes: Version | None) -> str:
    """When a choice went or comes, in brackets, where the tables know."""
    if gone is not None:
        return f" (it went in {gone})"
    return f" (it exists from {comes} on)" if comes is not None else ""


def arrival(context: Context, option: str, value: str) -> Version | None:
    """The first release after the target that knows a name which some options take (`releases.names`)."""
    from ..releases.names import names

    lives = names(context.engine).get(option, {}).get(value, [])
    return next((parse(since) for since, _ in lives if parse(since) > context.target), None)


def _bad_choice(context: Context, misuse: Misuse, given: str, common: dict[str, Any]) -> Finding:
    flag = misuse.flag
    assert flag is not None  # only a known option has choices
    choices = flag.choices or []
    gone, comes = context.options.choice_span(flag.name, given, context.target)
    since = choice_history(gone, comes or arrival(context, flag.name, given))
    return Finding(
        code="FL-09",
        change="choice",
        message=f"{flag.name} does not take {given!r} at {context.target}{since}; it takes {shortened(choices)}.",
        fix=instead(given, choices, misspelled=gone is None),
        **common,
    )


def value_gone(context: Context, use: Use) -> Iterator[Finding]:
    """A value that the release's parser takes and the release no longer knows; names are looked up in their own list."""
    gone = context.changes.value_gone(use.flag.name, use.value, context.target) if use.values else None
    choices = use.flag.choices or []
    if gone is not None and use.value not in choices and use.flag.name not in NAMED:
        yield left(gone, use.value_place)


GGUF = re.compile(r"\.gguf$|GGUF:\w+$", re.I)


def checkpoint_gone(context: Context) -> Iterator[Finding]:
    """A checkpoint in a quantization that left the release, where no option names it."""
    option = "--quantization"
    if context.engine != "vllm" or context.gives(option):
        return
    model = context.values.get("model")
    method = model_facts(context.model).get("quantization")
    if method is None and isinstance(model, str) and GGUF.search(model):
        method = "gguf"
    gone = context.changes.value_gone(option, method, context.target)
    if gone is None or not gone.checkpoint:
        return
    yield Finding(
        code="FL-18",
        severity="error",
        change="removed",
        message=f"The checkpoint's quantization, {gone.value}, is not in the release from {gone.gone} on: {gone.why}.",
        place=context.place_of([option, "--model"]),
        flags=(option,),
        fix=gone.fix,
        evidence=gone.evidence,
        stops=True,
    )


def _misplaced(
    word: Word | Argument, evidence: str, message: str, fix: str, flags: tuple[str, ...] = ()
) -> Finding:
    """A word where the release expects none."""
    return Finding(
        code="FL-14",
        severity="error",
        change="value_syntax",
        message=message,
        place=word.place,
        flags=flags,
        fix=fix,
        evidence=evidence,
        stops=True,
    )


def _two_in_one(context: Context, word: Argument) -> tuple[str, str, tuple[str, ...]]:
    """An option and its value in one word, as a list item without a split (`- --dtype auto`)."""
    option = word.text.split(" ", 1)[0]
    flag = context.table.find(option)
    message = f"{word.text!r} is one word; the parser of {context.target} sees no option in it."
    return message, f"Write {word.text.replace(' ', '=', 1)}, or two words.", (flag.name if flag else option,)


DASHES = ("–", "—", "−", "‐", "‑")


def _dash(context: Context, word: Argument) -> tuple[str, str, tuple[str, ...]]:
    """An option whose dashes a word processor replaced."""
    name = "--" + word.text.lstrip("".join(DASHES) + "-")
    message = (
        f"{word.text!r} begins with a typographic dash, so the parser of {context.target} sees no option."
    )
    return message, f"Write {name} with two hyphens.", (name.split("=", 1)[0],)


def _model_words(context: Context) -> int:
    """How many of the free words are the model: one for `vllm serve`, unless --model already names it."""
    if context.configuration.entry_point == "api_server":
        return 0
    use = context.use("--model")
    if use is None or isinstance(use.option.origins[0], Entry):
        return 1
    return int(context.configuration.entry_point == "serve" and context.dialect.serve_model != "moved")


# The first release whose `LLM` takes the model alone without its name (vllm/entrypoints/llm.py, LLM.__init__).
NAMED_SINCE = parse("0.9.1")


def unnamed_arguments(context: Context) -> Iterator[Finding]:
    """`LLM("model", "tokenizer")`, whose second argument needs its name."""
    for word in context.configuration.unnamed if context.target >= NAMED_SINCE else ():
        yield _misplaced(
            word,
            f"{context.target} vllm/entrypoints/llm.py (LLM.__init__)",
            f"LLM takes the model alone without its name from {NAMED_SINCE} on; {word.text!r} is one argument more.",
            "Write NAME=VALUE for everything behind the model.",
        )


def stray_words(context: Context) -> Iterator[Finding]:
    """Words that belong to no option; the first one of `vllm serve` is the model."""
    models = _model_words(context)
    commented: int | None = None
    typographic = False
    for word in context.parsed.positionals:
        if models and not word.text.startswith(("-", " ", "\t", *DASHES)) and word.text:
            models -= 1
            continue
        if word.opaque or word.place.line == commented:
            continue
        if typographic and not word.text.startswith(DASHES):
            continue
        typographic = word.text.startswith(DASHES)
        if typographic:
            told = _dash(context, word)
        elif word.text.startswith("-") and " " in word.text:
            told = _two_in_one(context, word)
        else:
            if word.text.lstrip().startswith("#") and word.text[0].isspace():
                commented = word.place.line
            told = _stray(context, word, commented is not None)
        yield _misplaced(word, f"{context.target} flag table", *told)


def _stray(context: Context, word: Argument, comment: bool) -> tuple[str, str, tuple[str, ...]]:
    """A word that no option takes; a comment or a blank behind a line's backslash is the usual reason."""
    if comment:
        message = "A comment follows the backslash, so the command ends there and the comment's words are arguments."
        return message, "Put the comment on a line of its own, in front of the command.", ()
    if not word.text.strip():
        message = "A blank follows the backslash at the end of the line, so the command ends there."
        return message, "Delete the blank after the backslash.", ()
    message = f"{word.text!r} belongs to no option; the parser of {context.target} refuses it."
    return message, f"Delete {word.text!r}, or quote it together with the value it belongs to.", ()

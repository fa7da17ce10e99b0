"""Findings about what reading the arguments itself does: YAML booleans, lists, dotted keys, `--config=FILE`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..inputs.base import Entry
from ..parsing.arguments import Trap
from ..parsing.conversion import BadValue, convert
from ..parsing.parser import arity
from ..releases.dialect import evidence
from ..releases.versions import parse
from .context import Context
from .findings import Change, Edit, Finding, Severity


def trap_findings(context: Context) -> Iterator[Finding]:
    """One finding for each trap met while the arguments were built."""
    for trap in context.arguments.traps:
        handler = HANDLERS.get(trap.kind)
        finding = handler(context, trap) if handler else None
        if finding is not None:
            yield finding
    yield from _model_place(context)
    yield from _module(context)


def _flag(context: Context, trap: Trap) -> str:
    flag = context.table.find(trap.name)
    return flag.name if flag else trap.name.replace("_", "-")


def _key(trap: Trap) -> str:
    """The key of the settings file, as it is written there."""
    return trap.origin.key if isinstance(trap.origin, Entry) else trap.name.lstrip("-")


def _found(
    context: Context, trap: Trap, kind: tuple[str, Severity, Change], message: str, fix: str, **more: Any
) -> Finding:
    """A finding of `kind` at a trap; an error keeps the release from starting."""
    code, severity, change = kind
    common = {
        "flags": (_flag(context, trap),),
        "evidence": evidence(context.engine, context.target, "yaml_false"),
        "stops": severity == "error",
    }
    return Finding(code, severity, change, message, trap.origin.place, fix=fix, **common | more)


DROPPED: tuple[str, Severity, Change] = ("YM-01", "warning", "silently_ignored")


def _false_dropped(context: Context, trap: Trap) -> Finding | None:
    """`key: false` that becomes nothing."""
    flag, name, key, at = context.table.find(trap.name), _flag(context, trap), _key(trap), context.target
    if flag is None:
        return _false_of_absent(context, trap)
    if context.table.is_negative(trap.name):
        message = f"{at} drops `{key}: false` from a settings file, so {name} keeps its default."
        edits = (Edit("rename", name, name, True),)
        return _found(context, trap, DROPPED, message, f"Write `{name.lstrip('-')}: true`.", edits=edits)
    off = flag.kind == "store_true" or name in context.changes.off_when_unset or _is_off(context, flag.dest)
    if flag.default is False or (flag.default is None and off):
        return None  # dropped, and off anyway
    rule = f"`{key}: false`" + (f" (it has no --no-{key})" if context.dialect.yaml_false == "negated" else "")
    default = "the default" + ("" if flag.default is None else f" ({flag.default})")
    message = (
        f"{at} drops {rule} from a settings file, so {name} is not turned off: {default} stays in force."
    )
    negative = flag.off
    if negative is None:
        return _found(context, trap, DROPPED, message, "Leave the key out.")
    edits = (Edit("rename", name, negative, True),)
    return _found(context, trap, DROPPED, message, f"Write `{negative.lstrip('-')}: true`.", edits=edits)


def _is_off(context: Context, dest: str) -> bool:
    """Whether an option amounts to false when it is not given, as far as that is known."""
    default = context.effective((dest,)).get(dest)
    return default is not None and not default.depends_on and default.value is False


def _false_of_absent(context: Context, trap: Trap) -> Finding | None:
    """`key: false` for an option the release does not have: dropped as well, so nothing fails."""
    name = context.options.name(trap.name.replace("_", "-"))
    span = context.options.removed_by(name, context.target) if name else None
    known = f"was removed in {span.gone}" if span else "is no option of this release"
    message = (
        f"{trap.name} {known}; `key: false` is dropped from a settings file, so {context.target} ignores it."
    )
    flag = name or trap.name
    edits = (Edit("unset", flag),)
    return _found(context, trap, DROPPED, message, "Delete the key.", flags=(flag,), edits=edits)


def _false_honoured(context: Context, trap: Trap) -> Finding:
    flag, key = context.table.find(trap.name), _key(trap)
    negative = (flag.off if flag else None) or ""
    message = (
        f"{context.target} reads `{key}: false` as {negative or '--no-' + key}; releases from 0.6.4 to "
        "0.27.1 dropped it from a settings file."
    )
    fix = f"None needed; `{negative.lstrip('-')}: true` says the same to every release."
    return _found(context, trap, ("YM-03", "info", "honoured"), message, fix)


def _literal(context: Context, trap: Trap, value: str) -> Finding:
    name, on = _flag(context, trap), value == "True"
    message = (
        f"{context.target} passes `{name.lstrip('-')}: {value.lower()}` as `{name} {value}`, "
        "which a switch does not take."
    )
    fix = "Give the switch on the command line." if on else "Delete the key; it is off unless given."
    edits = () if on else (Edit("unset", name),)
    return _found(context, trap, ("YM-02", "error", "value_syntax"), message, fix, edits=edits)


def _null(context: Context, trap: Trap) -> Finding | None:
    """`key:` without a value."""
    flag = context.table.find(trap.name)
    if flag is None or flag.optional:
        return None
    try:
        convert(flag, ["None"], dialect=context.dialect)
        refused = arity(flag)[1] == 0
    except BadValue:
        refused = True
    message = f"The key has no value; {context.target} passes `{flag.name} None`" + (
        ", which it does not take." if refused else "."
    )
    severity: Severity = "error" if refused else "warning"
    edits = (Edit("unset", flag.name),)
    return _found(context, trap, ("YM-04", severity, "value_syntax"), message, "Delete the key.", edits=edits)


def _python_text(context: Context, trap: Trap) -> Finding:
    name, flag = _flag(context, trap), context.table.find(trap.name)
    mapping = isinstance(trap.origin, Entry) and isinstance(trap.origin.value, dict)
    kind, feature = ("mapping", "yaml_mapping") if mapping else ("list", "yaml_list")
    breaks = flag is not None and (mapping or flag.type not in ("str", "list[str]"))
    severity: Severity = "error" if breaks else "warning"
    message = f"{context.target} passes a YAML {kind} as Python text, which {name} does not read."
    fix = "Give the values on the command line."
    if mapping:
        fix = f"Write the JSON as text: `{name.lstrip('-')}: '{{...}}'`."
    source = evidence(context.engine, context.target, feature)
    return _found(context, trap, ("YM-05", severity, "value_syntax"), message, fix, evidence=source)


def _empty_list(context: Context, trap: Trap) -> Finding:
    message = f"{context.target} drops an empty list, so {_flag(context, trap)} keeps its default."
    source = evidence(context.engine, context.target, "yaml_list")
    kind: tuple[str, Severity, Change] = ("YM-05", "info", "silently_ignored")
    return _found(context, trap, kind, message, "Delete the key.", evidence=source)


def _duplicate(context: Context, trap: Trap) -> Finding:
    name = _flag(context, Trap(trap.kind, "--" + trap.name, trap.origin))
    message = f"The key for {name} stands in the file more than once; the last one wins."
    kind: tuple[str, Severity, Change] = ("YM-06", "warning", "override")
    return _found(context, trap, kind, message, "Keep one.", flags=(name,), evidence="the settings file")


def _config_equals(context: Context, trap: Trap) -> Finding:
    message = (
        f"{context.target} looks for `--config` as a word of its own: with `=` the file is not read at all."
    )
    source = f"{context.target} FlexibleArgumentParser.parse_args (if '--config' in args)"
    kind: tuple[str, Severity, Change] = ("YM-07", "warning", "silently_ignored")
    fix = "Write `--config FILE` with a blank."
    return _found(context, trap, kind, message, fix, flags=("--config",), evidence=source)


def _dotted(context: Context, trap: Trap) -> Finding:
    message = f"{context.target} does not understand a JSON key after a dot ({trap.name}.KEY)."
    source = evidence(context.engine, context.target, "dotted")
    fix = f"Give {_flag(context, trap)} one JSON value."
    return _found(context, trap, ("YM-08", "error", "not_available_yet"), message, fix, evidence=source)


def _dotted_o(context: Context, trap: Trap) -> Finding:
    gone = context.dialect.optimization == "flag"
    what = "is gone from 0.13.0 on." if gone else "is deprecated; 0.13.0 drops it."
    kind: tuple[str, Severity, Change] = (
        ("YM-08", "error", "removed") if gone else ("YM-08", "warning", "deprecated")
    )
    return _found(
        context,
        trap,
        kind,
        f"-O.KEY for --compilation-config {what}",
        "Write -cc.KEY=VALUE.",
        flags=("-O", "--compilation-config"),
        evidence=evidence(context.engine, context.target, "optimization"),
    )


HANDLERS: dict[str, Callable[[Context, Trap], Finding | None]] = {
    "false_dropped": _false_dropped,
    "false_honoured": _false_honoured,
    "false_literal": partial(_literal, value="False"),
    "true_literal": partial(_literal, value="True"),
    "null_value": _null,
    "python_text": _python_text,
    "empty_list": _empty_list,
    "duplicate_key": _duplicate,
    "config_equals": _config_equals,
    "dotted_unsupported": _dotted,
    "dotted_o": _dotted_o,
}


def _model_place(context: Context) -> Iterator[Finding]:
    """`vllm serve --model NAME`, which some releases refuse and others only warn about."""
    use = context.use("--model")
    configuration = context.configuration
    if context.engine == "vllm" and configuration.entry_point == "serve" and not context.parsed.positionals:
        yield from _no_model(context)
    if use is None or configuration.entry_point != "serve" or isinstance(use.option.origins[0], Entry):
        return
    how = context.dialect.serve_model
    if context.engine != "vllm" or (how == "ignored" and not context.parsed.positionals):
        return
    refuses = how == "error"
    messages = {
        "error": f"`vllm serve` refuses --model at {context.target}: the model is its first word.",
        "moved": "`vllm serve` wants the model as its first word; --model is taken with a warning.",
        "ignored": "`vllm serve` takes the model from its first word; --model is ignored.",
    }
    yield Finding(
        code="FL-17",
        severity="error" if refuses else "warning",
        change="value_syntax" if refuses else ("silently_ignored" if how == "ignored" else "deprecated"),
        message=messages[how],
        place=use.option.place,
        flags=("--model",),
        fix="Write `vllm serve MODEL`.",
        evidence=evidence(context.engine, context.target, "serve_model"),
        stops=refuses,
    )


def _no_model(context: Context) -> Iterator[Finding]:
    """`vllm serve` without a model: refused by some releases, served with their default model by others."""
    required = context.dialect.serve_model == "ignored"
    if context.parsed.opaque or context.configuration.unread:
        return
    if not required and "model" in context.values:
        return
    taker = next((use for use in context.parsed.uses if use.flag.nargs == "+" and len(use.values) > 1), None)
    default = context.table.flags["--model"].default if "--model" in context.table.flags else None
    what = f"needs the model as its first word at {context.target}"
    if not required:
        what = f"has no model here, so {context.target} serves its default, {default}"
    swallowed = f"; {taker.flag.name} takes every word up to the next option" if taker else ""
    yield Finding(
        code="FL-17",
        severity="error" if required else "warning",
        change="value_syntax",
        message=f"`vllm serve` {what}{swallowed}.",
        place=(taker.option if taker else context.arguments.arguments[0]).place
        if context.arguments.arguments
        else context.configuration.start_place,
        flags=("--model", taker.flag.name) if taker else ("--model",),
        fix="Write `vllm serve MODEL` with the model first.",
        evidence=evidence(context.engine, context.target, "serve_model"),
        stops=required,
    )


def _module(context: Context) -> Iterator[Finding]:
    """`python -m MODULE`, where the release no longer has the module, or warns about it."""
    word = context.configuration.module
    change = next((c for c in context.changes.modules if word is not None and c.module == word.text), None)
    if word is None or change is None:
        return
    gone = change.gone is not None and parse(change.gone) <= context.target
    if not gone and (change.deprecated is None or parse(change.deprecated) > context.target):
        return
    yield Finding(
        code="FL-20",
        severity="error" if gone else "info",
        change="removed" if gone else "deprecated",
        message=f"{change.module} {'is gone from' if gone else 'is deprecated since'} {change.gone or change.deprecated}.",
        place=word.place,
        flags=(change.module,),
        fix="Start the server with `vllm serve MODEL`.",
        evidence=f"{context.target} {change.evidence}",
        stops=gone,
    )

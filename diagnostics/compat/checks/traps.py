"""Findings about what reading the arguments itself does: YAML booleans, lists, dotted keys, `--config=FILE`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ..inputs.base import Entry
from ..parsing.arguments import Trap
from ..parsing.conversion import BadValue, convert
from ..parsing.parser import arity
from ..releases.dialect import evidence
from ..releases.versions import parse
from .context import Context
from .findings import Edit, Finding


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


def _false_dropped(context: Context, trap: Trap) -> Finding | None:
    """`key: false` that becomes nothing."""
    flag = context.table.find(trap.name)
    name = _flag(context, trap)
    key = trap.origin.key if isinstance(trap.origin, Entry) else trap.name
    place = trap.origin.place
    if flag is None:
        return _false_of_absent(context, trap)
    if context.table.is_negative(trap.name):
        return _negative_dropped(context, trap, name, key)
    off = flag.kind == "store_true" or name in context.changes.off_when_unset or _is_off(context, flag.dest)
    if flag.default is False or (flag.default is None and off):
        return None  # dropped, and off anyway
    negative = next((n for n in flag.negatives if n.startswith("--no-")), None)
    rule = (
        f"`{key}: false`"
        if context.dialect.yaml_false != "negated"
        else f"`{key}: false` (it has no --no-{key})"
    )
    default = (
        "the default stays in force"
        if flag.default is None
        else f"the default ({flag.default}) stays in force"
    )
    fix = f"Write `{negative.lstrip('-')}: true`." if negative else "Leave the key out."
    return Finding(
        code="YM-01",
        severity="warning",
        change="silently_ignored",
        message=f"{context.target} drops {rule} from a settings file, so {name} is not turned off: {default}.",
        place=place,
        flags=(name,),
        fix=fix,
        evidence=evidence(context.engine, context.target, "yaml_false"),
        edits=(Edit("rename", name, negative, True),) if negative else (),
    )


def _is_off(context: Context, dest: str) -> bool:
    """Whether an option amounts to false when it is not given, as far as that is known."""
    default = context.effective((dest,)).get(dest)
    return default is not None and not default.depends_on and default.value is False


def _negative_dropped(context: Context, trap: Trap, name: str, key: str) -> Finding:
    """`no-key: false`, which asks for the option and is dropped."""
    return Finding(
        code="YM-01",
        severity="warning",
        change="silently_ignored",
        message=f"{context.target} drops `{key}: false` from a settings file, so {name} keeps its default.",
        place=trap.origin.place,
        flags=(name,),
        fix=f"Write `{name.lstrip('-')}: true`.",
        evidence=evidence(context.engine, context.target, "yaml_false"),
        edits=(Edit("rename", name, name, True),),
    )


def _false_of_absent(context: Context, trap: Trap) -> Finding | None:
    """`key: false` for an option the release does not have: dropped as well, so nothing fails."""
    name = context.options.name(trap.name.replace("_", "-"))
    span = context.options.removed_by(name, context.target) if name else None
    known = f"was removed in {span.gone}" if span else "is no option of this release"
    return Finding(
        code="YM-01",
        severity="warning",
        change="silently_ignored",
        message=f"{trap.name} {known}; `key: false` is dropped from a settings file, so {context.target} ignores it.",
        place=trap.origin.place,
        flags=(name or trap.name,),
        fix="Delete the key.",
        evidence=evidence(context.engine, context.target, "yaml_false"),
        edits=(Edit("unset", name or trap.name),),
    )


def _false_honoured(context: Context, trap: Trap) -> Finding:
    name = _flag(context, trap)
    key = trap.origin.key if isinstance(trap.origin, Entry) else trap.name.lstrip("-")
    flag = context.table.find(trap.name)
    negative = next((n for n in flag.negatives if n.startswith("--no-")), "") if flag else ""
    return Finding(
        code="YM-03",
        severity="info",
        change="honoured",
        message=f"{context.target} reads `{key}: false` as {negative or '--no-' + key}; releases from 0.6.4 to "
        "0.27.1 dropped it from a settings file.",
        place=trap.origin.place,
        flags=(name,),
        fix=f"None needed; `{negative.lstrip('-')}: true` says the same to every release.",
        evidence=evidence(context.engine, context.target, "yaml_false"),
    )


def _literal(context: Context, trap: Trap, value: str) -> Finding:
    name = _flag(context, trap)
    fix = (
        "Give the switch on the command line."
        if value == "True"
        else "Delete the key; it is off unless given."
    )
    return Finding(
        code="YM-02",
        severity="error",
        change="value_syntax",
        message=f"{context.target} passes `{name.lstrip('-')}: {value.lower()}` as `{name} {value}`, which a switch does not take.",
        place=trap.origin.place,
        flags=(name,),
        fix=fix,
        evidence=evidence(context.engine, context.target, "yaml_false"),
        stops=True,
        edits=(Edit("unset", name),) if value == "False" else (),
    )


def _null(context: Context, trap: Trap) -> Finding | None:
    """`key:` without a value."""
    flag = context.table.find(trap.name)
    if flag is None or flag.optional:
        return None
    name = flag.name
    try:
        convert(flag, ["None"], dialect=context.dialect)
        refused = arity(flag)[1] == 0
    except BadValue:
        refused = True
    return Finding(
        code="YM-04",
        severity="error" if refused else "warning",
        change="value_syntax",
        message=f"The key has no value; {context.target} passes `{name} None`"
        + (", which it does not take." if refused else "."),
        place=trap.origin.place,
        flags=(name,),
        fix="Delete the key.",
        evidence=evidence(context.engine, context.target, "yaml_false"),
        stops=refused,
        edits=(Edit("unset", name),),
    )


def _python_text(context: Context, trap: Trap) -> Finding:
    name = _flag(context, trap)
    mapping = isinstance(trap.origin, Entry) and isinstance(trap.origin.value, dict)
    kind = "mapping" if mapping else "list"
    flag = context.table.find(trap.name)
    breaks = flag is not None and (mapping or flag.type not in ("str", "list[str]"))
    fix = (
        f"Write the JSON as text: `{name.lstrip('-')}: '{{...}}'`."
        if mapping
        else "Give the values on the command line."
    )
    return Finding(
        code="YM-05",
        severity="error" if breaks else "warning",
        change="value_syntax",
        message=f"{context.target} passes a YAML {kind} as Python text, which {name} does not read.",
        place=trap.origin.place,
        flags=(name,),
        fix=fix,
        evidence=evidence(context.engine, context.target, "yaml_mapping" if mapping else "yaml_list"),
        stops=breaks,
    )


def _empty_list(context: Context, trap: Trap) -> Finding:
    name = _flag(context, trap)
    return Finding(
        code="YM-05",
        severity="info",
        change="silently_ignored",
        message=f"{context.target} drops an empty list, so {name} keeps its default.",
        place=trap.origin.place,
        flags=(name,),
        fix="Delete the key.",
        evidence=evidence(context.engine, context.target, "yaml_list"),
    )


def _duplicate(context: Context, trap: Trap) -> Finding:
    name = _flag(context, Trap(trap.kind, "--" + trap.name, trap.origin))
    return Finding(
        code="YM-06",
        severity="warning",
        change="override",
        message=f"The key for {name} stands in the file more than once; the last one wins.",
        place=trap.origin.place,
        flags=(name,),
        fix="Keep one.",
        evidence="the settings file",
    )


def _config_equals(context: Context, trap: Trap) -> Finding:
    return Finding(
        code="YM-07",
        severity="warning",
        change="silently_ignored",
        message=f"{context.target} looks for `--config` as a word of its own: with `=` the file is not read at all.",
        place=trap.origin.place,
        flags=("--config",),
        fix="Write `--config FILE` with a blank.",
        evidence=f"{context.target} FlexibleArgumentParser.parse_args (if '--config' in args)",
    )


def _dotted(context: Context, trap: Trap) -> Finding:
    name = _flag(context, trap)
    return Finding(
        code="YM-08",
        severity="error",
        change="not_available_yet",
        message=f"{context.target} does not understand a JSON key after a dot ({trap.name}.KEY).",
        place=trap.origin.place,
        flags=(name,),
        fix=f"Give {name} one JSON value.",
        evidence=evidence(context.engine, context.target, "dotted"),
        stops=True,
    )


def _dotted_o(context: Context, trap: Trap) -> Finding:
    gone = context.dialect.optimization == "flag"
    return Finding(
        code="YM-08",
        severity="error" if gone else "warning",
        change="removed" if gone else "deprecated",
        message="-O.KEY for --compilation-config "
        + ("is gone from 0.13.0 on." if gone else "is deprecated; 0.13.0 drops it."),
        place=trap.origin.place,
        flags=("-O", "--compilation-config"),
        fix="Write -cc.KEY=VALUE.",
        evidence=evidence(context.engine, context.target, "optimization"),
        stops=gone,
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

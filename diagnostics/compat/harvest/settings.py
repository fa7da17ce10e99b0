"""What the objects of a release hold: options, where nothing but the parser sets them, and facts of the model."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .interpret.evaluator import Evaluator
from .interpret.fields import NONE, FieldSpec, field_named, hint_parts
from .interpret.source import Module
from .interpret.values import MISSING, ClassValue, FunctionValue
from .resolved import Resolvers
from .rewriting import bound, substituted

Node = list[Any]
# Objects that are made only if an option, or the model, asks for them.
MADE_IF = {
    "LoRAConfig": ["name", "enable_lora"],
    "MultiModalConfig": ["name", "model.is_multimodal"],
    "PromptAdapterConfig": ["name", "enable_prompt_adapter"],
}
# The field that code fills in or respells, and that keeps a given value all the same, but for a release's names of MTP
# models, which it takes for this one; and where it lists them.
METHOD, MTP, MTP_NAMES = "SpeculativeConfig.method", "mtp", ("MTPModelTypes", "MTP_MODEL_TYPES")
# Objects that the release hands to another of its objects, and nobody else: they are no keys of an option.
HANDED = ("_model_config", "_parallel_config")
# Switches that the release turns in copies of an object only.
OF_COPIES = frozenset({"ModelConfig.is_submodel_config"})
# Facts of the model by the properties that a release's ModelConfig works them out in.
OF_MODEL = {
    "is_moe": "is_moe",
    "use_mla": "use_mla",
    "is_hybrid": "is_hybrid",
    "is_multimodal_model": "is_multimodal",
    "is_encoder_decoder": "is_encoder_decoder",
    "is_attention_free": "is_attention_free",
}
# The parsed command line, in functions that check it before an engine is configured.
ARGUMENTS = "args"


@dataclass(frozen=True)
class Settings:
    """What the methods of `cls`, or functions over the parsed command line, can look at.

    `names` are the options' names in conditions by `Class.field`, a key of a JSON option and its short form both;
    without a class, `arguments` are those of the command line by the attribute that each is parsed into.
    """

    evaluator: Evaluator
    cls: ClassValue | None
    names: Mapping[str, Sequence[str]]
    resolvers: Resolvers
    arguments: Mapping[str, str] = field(default_factory=dict)

    def class_of(self, node: ast.expr) -> ClassValue | None:
        """The class of `self`, or of one of the objects that it holds."""
        match node:
            case ast.Name(id="self"):
                return self.cls
            case ast.Attribute(value=base, attr=attr):
                spec = field_named(self.evaluator, self.class_of(base), attr)
                parts = hint_parts(spec.hint) if spec else []
                return next((part for part in parts if isinstance(part, ClassValue)), None)
        return None

    def always_made(self, node: ast.expr) -> bool:
        """Whether an expression is an object that is there whatever is configured."""
        match node:
            case ast.Attribute(value=base, attr=attr) if self.class_of(node) is not None:
                spec = field_named(self.evaluator, self.class_of(base), attr)
                return spec is not None and NONE not in hint_parts(spec.hint)
        return False

    def made_if(self, node: ast.expr) -> Node | None:
        """What an object is made on, where an option or the model asks for it."""
        cls = self.class_of(node) if isinstance(node, ast.Attribute) else None
        return None if cls is None else MADE_IF.get(cls.name)

    def attribute(self, node: ast.Attribute, module: Module) -> Node | None:
        """The option, the fact or the switch that an attribute is, looked at in a module; None for anything else."""
        base, attr = node.value, node.attr
        if isinstance(base, ast.Name) and base.id == ARGUMENTS and self.cls is None:
            if attr == "subparser":
                return ["lit", "serve"]
            return ["name", self.arguments[attr]] if attr in self.arguments else None
        if isinstance(base, ast.Name) and base.id == "envs":
            return self._variable(attr)
        made = self.made_if(node)
        cls = self.class_of(base)
        if made is not None or cls is None:
            return made
        if cls.name == "ModelConfig" and attr in OF_MODEL:
            return ["name", f"model.{OF_MODEL[attr]}"]
        spec = field_named(self.evaluator, cls, attr)
        own = isinstance(base, ast.Name)
        return None if spec is None else self._option(spec, (module, getattr(node, "lineno", 0)), own)

    def is_parsed(self, attr: str) -> bool:
        """Whether the parsed command line has an attribute."""
        return attr == "subparser" or attr in self.arguments

    def _variable(self, name: str) -> Node | None:
        """A switch among the environment variables that is off unless set; unknown where it is not given."""
        module = self.evaluator.tree.module("vllm.envs")
        default = MISSING if module is None else self.evaluator.module_name(module, name)
        return ["call", "truth", ["name", f"kept.env.{name}"]] if default is False else None

    def _option(self, spec: FieldSpec, place: tuple[Module, int], own: bool) -> Node | None:
        """The option behind a field, if nothing but the parser sets it."""
        names = self.names.get(spec.qualified)
        if spec.name.endswith(HANDED):
            return None
        if not names:
            return ["lit", False] if self._stays_off(spec) else None
        *short, name = sorted(names, key=lambda name: "." in name)
        found: Node = ["name", name]
        state = self.resolvers.state(names, spec, place, own)
        if state == "changed" and spec.qualified != METHOD:
            return None
        if state != "given":
            found = ["name", f"kept.{name}"]
        elif spec.default is None and self.resolvers.place(name, spec) is not None:
            found = ["name", f"given.{name}"]  # not yet what code makes of it
        if short:
            found = ["call", "coalesce", *(["name", f"given.{n}"] for n in short), found]
        return self._as_mtp(found, spec.owner.module) if spec.qualified == METHOD else found

    def _as_mtp(self, method: Node, module: Module) -> Node:
        """A method of speculation, where a release takes its names of MTP models, which all end so, for one."""
        if not any(name in module.bindings for name in MTP_NAMES):
            return method
        return ["if", ["call", "endswith", method, ["lit", MTP]], ["lit", MTP], method]

    def _stays_off(self, spec: FieldSpec) -> bool:
        """Whether a switch is off that neither an option nor anything else in the release's configuration turns."""
        if spec.qualified in OF_COPIES:
            return True
        return spec.default is False and self.resolvers.place(spec.name, spec) is None

    def returned(self, node: ast.expr) -> tuple[ast.expr, Module] | None:
        """What a property, or a method that does nothing else, returns for its arguments."""
        match node:
            case ast.Attribute(value=base, attr=attr) if (cls := self.class_of(base)) is not None:
                called: ast.Call | None = None
            case ast.Call(func=ast.Attribute(value=base, attr=attr)) if (
                cls := self.class_of(base)
            ) is not None:
                called = node
            case _:
                return None
        method = self.evaluator.classes.attribute(cls, attr)
        if not isinstance(method, FunctionValue) or (called is None) != _is_property(method):
            return None
        body = [item for item in method.node.body if not isinstance(item, ast.Expr)]
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        return substituted(body[0].value, bound(method, base, called)), method.module


def _is_property(method: FunctionValue) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in method.node.decorator_list)

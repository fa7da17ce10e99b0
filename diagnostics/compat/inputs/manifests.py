"""Servers inside Kubernetes manifests, Helm values and compose files."""

from __future__ import annotations

import contextlib
import re

import yaml

from .base import Configuration, Entry, EntryPoint, EnvSetting, UnreadableInput, Word, unread_environment
from .commands import CommandReader, align, find_entry, holds_server
from .containers import is_image, starts_itself
from .dynamo import leave_out
from .embedded import MANIFEST, block_scalar, only
from .kserve import adopt, is_huggingfaceserver
from .lexer import Char, lex
from .nodes import Tree
from .variables import ENV_KEYS, VARIABLE, environment, service_link, sources, text_of

COMMAND_KEYS = (
    "entrypoint", "command", "args", "extraArgs", "extraCmdArgs", "vllmArgs", "additionalArgs", "extra_args",
)  # fmt: skip
# Keys under which charts keep engine settings, written as `maxModelLen` for `--max-model-len`.
SETTINGS_KEYS = (
    "vllmConfig", "engineArgs", "vllmEngineArgs", "engine_kwargs", "engine_args", "vllm_args", "vllm_config",
)  # fmt: skip
# The roles by which srt-slurm's recipes keep the settings of Dynamo's workers.
ROLES = ("aggregated", "prefill", "decode")
# Environment variables that images and operators pass on as arguments.
ARGUMENT_VARIABLE = re.compile(r"VLLM_(ADDITIONAL_|EXTRA_)?ARGS|(EXTRA|ADDITIONAL)_(VLLM_)?ARGS")
SETTINGS_NOT_FLAGS = frozenset({"extraArgs", "enabled", "v0", "v1", "hf_token", "hfToken", "env"})
# Kinds whose pods each stand alone; others may make one server of several.
SINGLE_PODS = ("DaemonSet", "Deployment", "Job", "Pod", "ReplicaSet")
# KServe's kinds whose pods (decode, prefill and their workers) serve with vLLM in the container `main`.
LLM_SERVICES = ("LLMInferenceService", "LLMInferenceServiceConfig")


class ManifestReader:
    """Collects the servers of one YAML tree."""

    def __init__(self, tree: Tree, label: str) -> None:
        self.tree = tree
        self.label = label
        # Each server with the keys it stands under and its container's name.
        self.found: list[tuple[tuple[str, ...], Configuration]] = []
        self._compose = self._complete = self._serves = self._single = False
        self._linked = service_link(tree)

    def read(self) -> list[Configuration]:
        """Every server found, labelled with its container's name when there are several."""
        for document in self.tree.documents:
            kind = self.tree.get(document, "kind")
            if kind is not None and kind.value == "CustomResourceDefinition":
                continue
            self._compose = self.tree.get(document, "services") is not None
            self._single = kind is not None and kind.value in SINGLE_PODS
            self._serves = kind is not None and kind.value in LLM_SERVICES
            self._complete = self._compose or self.tree.get(document, "apiVersion") is not None
            for mapping, path in self.tree.mappings(document):
                self._mapping(mapping, path)
            self._embedded(document)
        if not self.found:
            self._scripts()
        if len(self.found) > 1:
            for (_, configuration), name in zip(self.found, _names([p for p, _ in self.found]), strict=True):
                configuration.label = f"{self.label}#{name}"
        return [configuration for _, configuration in self.found]

    def _embedded(self, document: yaml.Node) -> None:
        """Servers in YAML that stands as a text in this one (`serveConfigV2: |`, the files of a ConfigMap)."""
        text = self.tree.source.text
        for node, name in self.tree.scalars(document):
            if not MANIFEST.search(node.value):
                continue
            part = block_scalar(text, self.tree.start(node), self.tree.end(node))
            if part is None:
                continue
            try:
                inner = ManifestReader(Tree(self.tree.source, part), self.label)
            except UnreadableInput:
                continue
            inner.read()
            self.found += [
                ((*path[:-1], path[-1] or name), configuration) for path, configuration in inner.found
            ]

    def _scripts(self) -> None:
        """Servers started by shell text under any key (`run`, `script`, `setup`), as workflows have them."""
        for document in self.tree.documents:
            for node, name in self.tree.scalars(document):
                if holds_server(node.value):
                    text = align(
                        node.value, self.tree.source.text, self.tree.start(node), self.tree.end(node)
                    )
                    reader = CommandReader(self.tree.source, self.label, prose=True)
                    found = reader.read(text) + read_embedded(reader)
                    self.found += [((name,), configuration) for configuration in found]

    def _mapping(self, mapping: yaml.MappingNode, path: tuple[str, ...]) -> None:
        under = path[-1] if path else ""
        nodes = {key: value for key, _, value in self.tree.items(mapping) if isinstance(key, str)}
        name_node = nodes.get("name")
        name = name_node.value if isinstance(name_node, yaml.ScalarNode) else under
        named = (*path, name) if path[-1:] != (name,) else path
        env = environment(self.tree, nodes)
        image = self._image(nodes)
        settings = next((nodes[key] for key in SETTINGS_KEYS if key in nodes), None)
        given, unread = sources(self.tree, nodes)
        env = given | env
        if self._linked is not None and self._complete and not self._compose:
            env.setdefault(self._linked.name, self._linked)
        started = self._from_command(nodes, env, image, path)
        configuration = started[0] if started else self._from_variable(nodes, env, image)
        if configuration is None and isinstance(settings, yaml.MappingNode) and self._roles(settings):
            return
        if configuration is None and isinstance(settings, yaml.MappingNode):
            configuration = Configuration(self.label, self.tree.source, env=env, image=image)
        if configuration is None:
            return
        for server in [configuration, *started[1:]]:
            server.gpus = _gpus(self.tree, nodes) if self._stands_alone(nodes) else None
            server.notes += [unread_environment(name) for name in unread]
        if isinstance(settings, yaml.MappingNode):
            configuration.entries = self._settings(settings)
            configuration.typed = True
            configuration.keywords = settings is nodes.get("engine_kwargs")  # Ray's
            v1 = self.tree.get(settings, "v1")
            if v1 is not None:  # the production stack's charts set the variable by it
                chosen = EnvSetting("VLLM_USE_V1", text_of(v1), self.tree.place(v1))
                configuration.env.setdefault(chosen.name, chosen)
            extra = self.tree.get(settings, "extraArgs")
            if extra is not None:
                configuration.words += self._words(extra)
            model = nodes.get("modelURL")
            if isinstance(model, yaml.ScalarNode) and configuration.entry_point is None:
                configuration.entry_point = "serve"
                configuration.words = [*self._words(model)[:1], *configuration.words]
        self.found += [(named, server) for server in [configuration, *started[1:]]]

    def _stands_alone(self, nodes: dict[str, yaml.Node]) -> bool:
        """Whether one pod is all there is of a server: by its kind, or in the production stack's chart without Ray."""
        ray = nodes.get("raySpec")
        spread = None if ray is None else self.tree.get(ray, "enabled")
        return self._single or ("modelURL" in nodes and (text_of(spread) or "").lower() != "true")

    def _roles(self, settings: yaml.MappingNode) -> bool:
        """Take in settings that are kept by role (srt-slurm's `vllm_config: {prefill: ..., decode: ...}`)."""
        roles = [(str(key), value) for key, _, value in self.tree.items(settings) if key in ROLES]
        for role, value in roles:
            if isinstance(value, yaml.MappingNode):
                entries = self._settings(value)
                found = Configuration(self.label, self.tree.source, entries=entries, typed=True)
                found.launcher = "what the launcher adds"
                leave_out(found)
                self.found.append(((role,), found))
        return bool(roles)

    def _image(self, nodes: dict[str, yaml.Node]) -> str | None:
        image = nodes.get("image")
        if isinstance(image, yaml.ScalarNode) and isinstance(image.value, str):
            return VARIABLE.sub(lambda match: match.group(3) or match.group(), image.value)
        if isinstance(image, yaml.MappingNode):
            repository, tag = self.tree.get(image, "repository"), self.tree.get(image, "tag")
            if isinstance(repository, yaml.ScalarNode):
                return repository.value + (f":{tag.value}" if isinstance(tag, yaml.ScalarNode) else "")
        repository, tag = nodes.get("repository"), nodes.get("tag")
        if isinstance(repository, yaml.ScalarNode) and isinstance(tag, yaml.ScalarNode):
            return f"{repository.value}:{tag.value}"
        return None

    def _from_command(
        self,
        nodes: dict[str, yaml.Node],
        env: dict[str, EnvSetting],
        image: str | None,
        path: tuple[str, ...],
    ) -> list[Configuration]:
        """The servers of a container's command and arguments: one, unless a shell text starts several."""
        words: list[Word] = []
        for key in COMMAND_KEYS:
            if key in nodes and isinstance(nodes[key], (yaml.ScalarNode, yaml.SequenceNode)):
                words += self._words(nodes[key], env)
        entry = find_entry(words)
        replaces = "entrypoint" in nodes or ("command" in nodes and not self._compose)
        # Charts put a command of their own in front of `args`; what these kinds say is all there is.
        doubles = not replaces and starts_itself(image) and self._complete
        if entry is not None:
            begin, engine, point = entry
            found = self._configuration(words[begin:], env, image, engine, point)
            if point == "api_server":
                found.module = words[begin - 1]
            if doubles or (begin == 2 and not replaces and starts_itself(image)):
                found.doubled = words[0]
            return [found]
        nested = next((word for word in words if holds_server(word.text)), None)
        if nested is not None:
            reader = CommandReader(self.tree.source, self.label, list(env.values()))
            text = align(nested.text, self.tree.source.text, nested.start, nested.end)
            found = reader.read(_unescaped(text) if self._compose else text)
            for server in found:
                server.image = image
                server.doubled = words[0] if doubles else server.doubled
            if found:
                return found
        if (
            not replaces
            and self._takes_arguments(nodes, image, path)
            and any(w.text.startswith("-") for w in words)
        ):
            begin = 1 if words[0].text == "serve" else 0
            found = self._configuration(words[begin:], env, image, "vllm", "serve" if begin else None)
            if begin and starts_itself(image):
                found.doubled = words[0]
            if is_huggingfaceserver(image, *self._called(nodes)):
                adopt(found)
            return [found]
        return []

    def _from_variable(
        self, nodes: dict[str, yaml.Node], env: dict[str, EnvSetting], image: str | None
    ) -> Configuration | None:
        """A server whose arguments stand in an environment variable such as VLLM_ADDITIONAL_ARGS."""
        for key in ENV_KEYS:
            for name, value in self._variables(nodes.get(key)):
                if ARGUMENT_VARIABLE.fullmatch(name) and value.value.lstrip().startswith("-"):
                    return self._configuration(self._words(value, env), env, image, "vllm", None)
        return None

    def _variables(self, node: yaml.Node | None) -> list[tuple[str, yaml.ScalarNode]]:
        """(name, value) of each variable of an environment that is a mapping or a list of names and values."""
        if isinstance(node, yaml.MappingNode):
            pairs = [(str(name), value) for name, _, value in self.tree.items(node)]
        elif isinstance(node, yaml.SequenceNode):
            items = [(self.tree.get(item, "name"), self.tree.get(item, "value")) for item in node.value]
            pairs = [(name.value, value) for name, value in items if isinstance(name, yaml.ScalarNode)]
        else:
            return []
        return [(name, value) for name, value in pairs if isinstance(value, yaml.ScalarNode)]

    def _takes_arguments(self, nodes: dict[str, yaml.Node], image: str | None, path: tuple[str, ...]) -> bool:
        """Whether bare option words belong to vLLM: by the image, or by what the manifest calls it."""
        if (image and is_image(image)) or (self._serves and "main" in self._called(nodes)):
            return True
        called = self._called(nodes)
        if not image and path and path[-1] not in SETTINGS_KEYS:
            called.append(path[-1])
        return is_huggingfaceserver(*called) or any("vllm" in text.lower() for text in called)

    def _called(self, nodes: dict[str, yaml.Node]) -> list[str]:
        """What a manifest calls the server: its model format, runtime, command or name."""
        model_format = nodes.get("modelFormat")
        names = [self.tree.get(model_format, "name")] if model_format is not None else []
        names += [nodes.get(key) for key in ("name", "runtime", "modelCommand", "engine")]
        return [str(node.value) for node in names if isinstance(node, yaml.ScalarNode)]

    def _configuration(
        self,
        words: list[Word],
        env: dict[str, EnvSetting],
        image: str | None,
        engine: str,
        point: EntryPoint | None,
    ) -> Configuration:
        return Configuration(
            self.label, self.tree.source, engine=engine, entry_point=point, words=words, env=env, image=image
        )

    def _words(self, node: yaml.Node, env: dict[str, EnvSetting] | None = None) -> list[Word]:
        """The words of a list (one each) or of a string (split as a shell splits it)."""
        if isinstance(node, yaml.SequenceNode):
            items = [child for child in node.value if isinstance(child, yaml.ScalarNode)]
            return [self._item(child, env or {}) for child in items]
        if not isinstance(node, yaml.ScalarNode):
            return []
        start, end = self.tree.start(node), self.tree.end(node)
        reader = CommandReader(self.tree.source, self.label, list((env or {}).values()))
        text = align(node.value, self.tree.source.text, start, end)
        if "\n" in node.value.strip() and holds_server(node.value):
            return [Word(node.value, self.tree.place(node), self.tree.source, start, end, False, "item")]
        return [word for command in lex(text) for raw in command for word in reader.shell.expand(raw)]

    def _item(self, node: yaml.ScalarNode, env: dict[str, EnvSetting]) -> Word:
        text, opaque = node.value, False

        def known(match: re.Match[str]) -> str:
            nonlocal opaque
            setting = env.get(next(group for group in match.group(1, 2, 4) if group) or "")
            if setting is not None and setting.value is not None:
                return setting.value
            if match.group(3) is not None:
                return match.group(3)
            opaque = True
            return match.group()

        if "$" in text and not holds_server(text):
            text = VARIABLE.sub(known, text)
        if "{{" in text:  # a template that only Helm can fill in
            opaque = True
        start, end = self.tree.start(node), self.tree.end(node)
        return Word(text, self.tree.place(node), self.tree.source, start, end, opaque, "item")

    def _settings(self, mapping: yaml.MappingNode) -> list[Entry]:
        return [
            self.tree.entry(kebab(str(key)), key_node, value)
            for key, key_node, value in self.tree.items(mapping)
            if str(key) not in SETTINGS_NOT_FLAGS
        ]


def _names(paths: list[tuple[str, ...]]) -> list[str]:
    """A name for each server: its container's; where several have one, the keys at which their ways part, or else a
    number."""
    named: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        named.setdefault(path[-1], []).append(index)
    found = [path[-1] for path in paths]
    for name, same in named.items():
        keys = _partings([paths[index] for index in same])
        for number, (index, key) in enumerate(zip(same, keys, strict=True)):
            numbered = f"{name}-{number + 1}" if number and name else name or str(number + 1)
            found[index] = key if len(set(keys)) == len(keys) > 1 else numbered
    return found


def _partings(paths: list[tuple[str, ...]]) -> list[str]:
    """For each path its keys at which others part from it."""
    found: list[str] = []
    for path in paths:
        rest, keys = paths, []
        for at, key in enumerate(path):
            along = [other for other in rest if other[at : at + 1] == (key,)]
            keys += [key] if len(along) < len(rest) else []
            rest = along
        found.append("/".join(keys))
    return found


def _gpus(tree: Tree, nodes: dict[str, yaml.Node]) -> int | None:
    """The GPUs that a container's resources name, or a model's entry in the production stack's chart."""
    resources = nodes.get("resources")
    limits = tree.get(resources, "limits") if resources is not None else None
    named = [value for key, _, value in tree.items(limits) if str(key).endswith("/gpu")] if limits else []
    told = [
        str(node.value) for node in [*named, nodes.get("requestGPU")] if isinstance(node, yaml.ScalarNode)
    ]
    return next((int(text) for text in told if text.isdigit()), None)


def kebab(text: str) -> str:
    """`maxModelLen` and `max_model_len` as `max-model-len`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text).lower().replace("_", "-")


def _unescaped(chars: list[Char]) -> list[Char]:
    """A text in double quotes as Compose takes it: a backslash in front of a blank goes, and a `$` before a `$`."""
    pairs = [(char, following[0]) for char, following in zip(chars, [*chars[1:], ("", 0)], strict=True)]
    return [
        char
        for char, after in pairs
        if not (char[0] == "\\" and after.isspace()) and not char[0] == after == "$"
    ]


def read_embedded(reader: CommandReader) -> list[Configuration]:
    """The servers of the manifests that a shell text holds in its here-documents."""
    found: list[Configuration] = []
    for start, end in reader.manifests:
        with contextlib.suppress(UnreadableInput):
            tree = Tree(reader.source, only(reader.source.text, start, end))
            found += ManifestReader(tree, reader.label).read()
    return found

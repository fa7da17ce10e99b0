from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

from camshaft.core.errors import CamshaftError
from camshaft.diagnostics.compat.harvest.add import add_tables, records, stored_tables
from camshaft.diagnostics.compat.harvest.errors import HarvestError
from camshaft.diagnostics.compat.harvest.fetch import MAX_FILE_BYTES, unpack
from camshaft.diagnostics.compat.harvest.release import Harvest, harvest
from camshaft.diagnostics.compat.releases.table import Flag

# A small release in the manner of recent ones: options come from config classes.
CONFIG_STYLE = {
    "vllm/config/__init__.py": """
        from vllm.config.cache import CacheConfig, CacheKind
        from vllm.config.extra import ExtraConfig
    """,
    "vllm/config/cache.py": '''
        import os
        from dataclasses import field
        from typing import Annotated, ClassVar, Literal

        from pydantic import Field, SkipValidation

        from vllm.config.tools import config

        CacheKind = Literal["auto", "fp8"]
        Colour = Literal["red", CacheKind]

        @config
        class Base:
            size: int | None = None
            """How many."""

        @config
        class CacheConfig(Base):
            LIMIT: ClassVar[int] = 3
            share: float = Field(default=0.9, gt=0, le=1)
            kind: CacheKind = "auto"
            colour: Colour | None = None
            free: Literal["a", "b"] | str = "a"
            on: bool = True
            perhaps: SkipValidation[bool | None] = None
            budget: int = 1 << 3
            sizes: list[int] = field(default_factory=lambda: [1, 2])
            words: tuple[str, str] = ("x", "y")
            loads: dict[str, int] = field(default_factory=dict)
            either: dict[str, int] | str = "z"
            old: int = 0
            """Deprecated: this option will be removed in v0.9.0, use --size."""
            host: str = os.uname().nodename
    ''',
    "vllm/config/extra.py": """
        from dataclasses import field

        from vllm.config.tools import config

        @config
        class Inner:
            depth: int = 2

        @config
        class ExtraConfig:
            name: str | None = None
            inner: Inner = field(default_factory=Inner)
            hidden: int = field(default=0, init=False)

            def __post_init__(self):
                if self.name is None:
                    self.name = "computed"
    """,
    "vllm/config/tools.py": "def config(cls): return cls\n",
    "vllm/envs.py": """
        import os
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            VLLM_LEVEL: str = "INFO"

        def env_with_choices(name, default, choices):
            return lambda: os.getenv(name, default)

        environment_variables = {
            "VLLM_LEVEL": lambda: os.getenv("VLLM_LEVEL", "INFO").lower(),
            "VLLM_PORT": lambda: int(os.environ.get("VLLM_PORT", "0")) or 8,
            # Deprecated: use --size instead.
            "VLLM_SIZE": lambda: bool(int(os.getenv("VLLM_SIZE", "0"))),
            "VLLM_MODE": env_with_choices("VLLM_MODE", "a", ["a", "b"]),
            "VLLM_WHERE": lambda: find_it(),
        }
    """,
    "vllm/utils/argparse_utils.py": """
        class EnableDisableAction:
            _inverse_prefixes = {"--enable-": "--disable-", "--disable-": "--enable-"}
    """,
    "vllm/reasoning/__init__.py": """
        from vllm.reasoning.manager import ReasoningParserManager
        from vllm.reasoning.one import One

        _REASONING_PARSERS_TO_REGISTER = {"lazy": ("lazy", "Lazy")}
    """,
    "vllm/reasoning/manager.py": "class ReasoningParserManager:\n    reasoning_parsers = {}\n",
    "vllm/reasoning/one.py": """
        from vllm.reasoning.manager import ReasoningParserManager

        @ReasoningParserManager.register_module(["one", "uno"])
        class One: ...
    """,
    "vllm/reasoning/unused.py": """
        from vllm.reasoning.manager import ReasoningParserManager

        @ReasoningParserManager.register_module("unused")
        class Unused: ...
    """,
    "vllm/engine/arg_utils.py": """
        import argparse
        import sys
        from dataclasses import dataclass

        import vllm.envs as envs
        from vllm.config import CacheConfig, ExtraConfig
        from vllm.reasoning import ReasoningParserManager

        _GONE_DEPRECATION_MESSAGE = "--gone is deprecated and will be removed in v0.8.0. Use --size."

        class WarnAction(argparse.Action):
            def __call__(self, parser, namespace, values, option_string=None):
                warn(_GONE_DEPRECATION_MESSAGE)

        def optional_type(return_type): ...

        def literal_to_kwargs(hints):
            kwarg = "metavar" if str in hints else "choices"

        def get_kwargs(cls):
            for name in cls:
                if name in {"budget"}:
                    kwargs[name]["type"] = human_readable_int
                kwargs[name]["choices"].append("None")

        @dataclass
        class EngineArgs:
            limit: int | None = None
            level: str = envs.VLLM_LEVEL

            @staticmethod
            def add_cli_args(parser):
                cache = get_kwargs(CacheConfig)
                group = parser.add_argument_group(title="CacheConfig")
                group.add_argument("--share", "--portion", **cache["share"])
                if not ("serve" in sys.argv and "--help" in sys.argv):
                    group.add_argument("--kind", **cache["kind"])
                cache["colour"]["choices"] += ["blue"]
                group.add_argument("--colour", **cache["colour"])
                for name in ("free", "perhaps", "budget", "sizes", "words", "loads", "either", "old", "host"):
                    group.add_argument(f"--{name}", **cache[name])
                group.add_argument("--enable-on", **cache["on"])
                group.add_argument("--size", **{**cache["size"], "default": None})
                parser.add_argument("--extra-config", "-xc", **get_kwargs(ExtraConfig)["inner"])
                parser.add_argument("--gone", action=WarnAction, default=argparse.SUPPRESS)
                parser.add_argument("--limit", type=optional_type(int), default=EngineArgs.limit)
                parser.add_argument("--level", default=EngineArgs.level, choices=["info", "debug"])
                parser.add_argument("--thinker", choices=list(ReasoningParserManager.reasoning_parsers))
                parser.add_argument("--quiet", action="store_true")
                return parser

            def create_engine_config(self):
                if self.limit is None:
                    self.limit = 7
    """,
    "vllm/entrypoints/openai/cli_args.py": """
        import json

        from vllm.config.tools import config
        from vllm.engine.arg_utils import EngineArgs, get_kwargs

        @config
        class Frontend:
            port: int = 8000
            origins: list[str] | None = None

            @classmethod
            def _customise(cls, kwargs):
                kwargs["origins"]["type"] = json.loads
                del kwargs["origins"]["nargs"]
                return kwargs

            @classmethod
            def add_cli_args(cls, parser):
                kwargs = cls._customise(get_kwargs(cls))
                group = parser.add_argument_group(title=cls.__name__)
                for key, value in kwargs.items():
                    flags = value.pop("flags", [])
                    group.add_argument(*flags, f"--{key.replace('_', '-')}", **value)
                return parser

        @config
        class BigFrontend(Frontend):
            uds: str = ""

            @classmethod
            def _customise(cls, kwargs):
                kwargs = super()._customise(kwargs)
                kwargs["port"]["flags"] = ["-p"]
                return kwargs

        def make_arg_parser(parser):
            parser.add_argument("model_tag", nargs="?")
            return EngineArgs.add_cli_args(BigFrontend.add_cli_args(parser))
    """,
    "vllm/entrypoints/cli/serve.py": """
        from vllm.entrypoints.openai.cli_args import make_arg_parser

        class ServeSubcommand:
            name = "serve"

            def subparser_init(self, subparsers):
                parser = subparsers.add_parser(self.name, help="...")
                parser.add_argument("--config", default="")
                return make_arg_parser(parser)
    """,
}

# And in the manner of the first ones: everything is written out, below one command of several.
LITERAL_STYLE = {
    "vllm/envs.py": "environment_variables = {}\n",
    "vllm/engine/arg_utils.py": """
        def nullable_str(val): ...

        class EngineArgs:
            seed: int = 0

            @staticmethod
            def add_cli_args(parser):
                parser.add_argument("--seed", type=int, default=EngineArgs.seed)
                parser.add_argument("--name", type=nullable_str, default=None, choices=[*KINDS, None])
                parser.add_argument("--sloppy", action=StoreBoolean, default=False, nargs="?", const="True")
                return parser

        KINDS = {"a": 1, "b": 2}

        class StoreBoolean: ...
    """,
    "vllm/scripts.py": """
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils import FlexibleArgumentParser

        def main():
            parser = FlexibleArgumentParser(description="cli")
            parser.add_argument("--version", action="version")
            subparsers = parser.add_subparsers(required=True)
            serve = subparsers.add_parser("serve", help="...")
            serve.add_argument("--config", type=str, default="")
            EngineArgs.add_cli_args(serve)
            chat = subparsers.add_parser("chat")
            chat.add_argument("--url")
    """,
    "vllm/utils.py": "class FlexibleArgumentParser: ...\n",
}


def write(tree: dict[str, str], root: Path) -> Path:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Harvest:
    return harvest(write(CONFIG_STYLE, tmp_path_factory.mktemp("release")))


def facts(flag: Flag) -> dict[str, object]:
    return {
        key: value
        for key in ("type", "kind", "default", "choices", "nargs", "parse", "optional", "resolver")
        if (value := getattr(flag, key)) not in (None, False, "value") or key == "default"
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("--share", {"type": "float", "default": 0.9}),
        ("--kind", {"type": "str", "default": "auto", "choices": ["auto", "fp8"]}),
        (
            "--colour",
            {
                "type": "str",
                "default": None,
                "choices": ["auto", "fp8", "red", "None", "blue"],
                "optional": True,
            },
        ),
        ("--free", {"type": "str", "default": "a"}),
        ("--perhaps", {"type": "bool", "kind": "boolean_optional", "default": None}),
        ("--budget", {"type": "int", "default": 8, "parse": "human_readable"}),
        ("--sizes", {"type": "list[int]", "default": [1, 2], "nargs": "+"}),
        ("--words", {"type": "list[str]", "default": ["x", "y"], "nargs": 2}),
        ("--loads", {"type": "json", "default": {}}),
        ("--either", {"type": "json|str", "default": "z"}),
        ("--enable-on", {"type": "bool", "kind": "boolean_optional", "default": True}),
        ("--size", {"type": "int", "default": None, "optional": True}),
        ("--extra-config", {"type": "json", "default": {}}),
        ("--gone", {"type": "str", "default": None}),
        ("--limit", {"type": "int", "default": None, "optional": True, "resolver": "limit"}),
        ("--level", {"type": "str", "default": "info", "choices": ["info", "debug"]}),
        ("--thinker", {"type": "str", "default": None, "choices": ["lazy", "one", "uno"]}),
        ("--quiet", {"type": "bool", "kind": "store_true", "default": False}),
        ("--port", {"type": "int", "default": 8000}),
        ("--origins", {"type": "json", "default": None}),
        ("--uds", {"type": "str", "default": ""}),
        ("--config", {"type": "str", "default": ""}),
        ("--host", {"type": "str", "default": None, "resolver": "host"}),
    ],
)
def test_an_option_of_a_config_class_is_read(found: Harvest, name: str, expected: dict[str, object]) -> None:
    assert facts(found.flags[name]) == expected


def test_every_option_is_there_once_and_nothing_else(found: Harvest) -> None:
    assert sorted(found.flags) == sorted(
        [
            "--config",
            "--port",
            "--origins",
            "--uds",
            "--share",
            "--kind",
            "--colour",
            "--free",
            "--perhaps",
            "--budget",
            "--sizes",
            "--words",
            "--loads",
            "--either",
            "--old",
            "--host",
            "--enable-on",
            "--size",
            "--extra-config",
            "--gone",
            "--limit",
            "--level",
            "--thinker",
            "--quiet",
        ]
    )


def test_spellings_group_field_and_places_are_kept(found: Harvest) -> None:
    share = found.flags["--share"]
    assert (share.aliases, share.group, share.field) == (["--portion"], "CacheConfig", "CacheConfig.share")
    assert share.evidence.startswith("vllm/engine/arg_utils.py:")
    assert share.defined.startswith("vllm/config/cache.py:")
    assert found.flags["--size"].field == "Base.size"
    assert found.flags["--port"].aliases == ["-p"]
    assert found.flags["--enable-on"].negatives == ["--no-enable-on", "--disable-on"]
    assert found.flags["--limit"].resolved.startswith("vllm/engine/arg_utils.py:")


def test_deprecations_come_from_help_and_from_a_custom_action(found: Harvest) -> None:
    assert found.flags["--old"].deprecated == "deprecated; to be removed in 0.9.0; use --size"
    assert found.flags["--gone"].deprecated == "deprecated; to be removed in 0.8.0; use --size"
    assert [name for name, flag in found.flags.items() if flag.deprecated] == ["--old", "--gone"]


def test_what_only_the_running_release_knows_is_reported_and_not_guessed(found: Harvest) -> None:
    assert [text.split(":")[0] for text in found.unresolved] == ["--host"]


def test_environment_variables_are_read_with_their_defaults(found: Harvest) -> None:
    assert {name: variable.default for name, variable in found.env.items()} == {
        "VLLM_LEVEL": "info",
        "VLLM_PORT": 8,
        "VLLM_SIZE": False,
        "VLLM_MODE": "a",
        "VLLM_WHERE": None,
    }
    assert found.env["VLLM_MODE"].choices == ["a", "b"]
    assert found.env["VLLM_SIZE"].deprecated == "deprecated; use --size"
    assert found.env["VLLM_LEVEL"].deprecated is None


def test_options_written_out_below_one_command_of_several_are_read(tmp_path: Path) -> None:
    old = harvest(write(LITERAL_STYLE, tmp_path))
    assert list(old.flags) == ["--config", "--seed", "--name", "--sloppy"]
    assert facts(old.flags["--name"]) == {
        "type": "str",
        "default": None,
        "choices": ["a", "b", None],
        "optional": True,
    }
    assert old.flags["--sloppy"].kind == "store_boolean"
    assert old.flags["--seed"].field == "EngineArgs.seed"


def test_a_folder_without_a_serve_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HarvestError, match="no `vllm serve`"):
        harvest(write({"vllm/__init__.py": "", "vllm/config/__init__.py": ""}, tmp_path))


def test_a_release_added_between_two_others_leaves_them_as_they_were(tmp_path: Path) -> None:
    flags = {name: Flag(name=name, type="int", default=1, evidence="x.py:3") for name in ("--a", "--b")}
    changed = {"--a": Flag(name="--a", type="int", default=2, evidence="x.py:9")}
    add_tables("vllm", {"0.2.0": records(flags, {}), "0.10.0": records(flags, {})}, tmp_path)
    before = stored_tables(tmp_path)
    add_tables("vllm", {"0.9.0": records(changed, {})}, tmp_path)
    after = stored_tables(tmp_path)
    assert list(after) == ["0.2.0", "0.9.0", "0.10.0"]
    assert {version: after[version] for version in before} == before
    assert after["0.9.0"][0] == {"--a": {"type": "int", "default": 2, "evidence": "x.py:9"}}


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]], path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


def test_only_the_package_s_own_sources_are_unpacked_and_nothing_leaves_the_folder(tmp_path: Path) -> None:
    archive = tar_of(
        [
            (member("vllm-1.0/vllm/ok.py"), b"x = 1"),
            (member("vllm-1.0/vllm/../../../escaped.py"), b"bad"),
            (member("/vllm/vllm/absolute.py"), b"bad"),
            (member("vllm-1.0/setup.py"), b"raise SystemExit"),
            (member("vllm-1.0/vllm/native.so"), b"bad"),
            (member("vllm-1.0/vllm/link.py", tarfile.SYMTYPE, "/etc/passwd"), b""),
            (member("vllm-1.0/vllm/hard.py", tarfile.LNKTYPE, "../../../../etc/passwd"), b""),
        ],
        tmp_path / "r.tar.gz",
    )
    into = tmp_path / "deep" / "into"
    unpack(archive, "vllm", into)
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.py")] == ["deep/into/vllm/ok.py"]


def test_a_wheel_is_unpacked_by_the_same_rules(tmp_path: Path) -> None:
    archive = tmp_path / "r.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("vllm/ok.py", "x = 1")
        wheel.writestr("vllm/../../escaped.py", "bad")
        wheel.writestr("other/no.py", "bad")
    unpack(archive, "vllm", tmp_path / "deep" / "into")
    assert [p.name for p in tmp_path.rglob("*.py")] == ["ok.py"]


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    archive = tar_of([(member("vllm-1.0/vllm/big.py"), b"#" * (MAX_FILE_BYTES + 1))], tmp_path / "r.tar.gz")
    with pytest.raises(HarvestError, match="larger"):
        unpack(archive, "vllm", tmp_path / "into")


@pytest.mark.parametrize("data", [b"", b"not an archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_archive_is_an_error_of_the_user_s(tmp_path: Path, data: bytes) -> None:
    archive = tmp_path / "r.tar.gz"
    archive.write_bytes(data)
    with pytest.raises(CamshaftError, match="cannot be unpacked"):
        unpack(archive, "vllm", tmp_path / "into")


def test_an_option_that_could_not_be_followed_is_reported(tmp_path: Path) -> None:
    hidden = """
        class EngineArgs:
            @staticmethod
            def add_cli_args(parser):
                parser.add_argument("--seen", type=int, default=1)
                if ask_the_machine():
                    parser.add_argument("--unseen")
                return parser
    """
    made = harvest(write(LITERAL_STYLE | {"vllm/engine/arg_utils.py": hidden}, tmp_path))
    assert list(made.flags) == ["--config", "--seen"]
    assert made.unresolved == ["vllm/engine/arg_utils.py:7: an add_argument call was not reached"]


def test_what_depends_on_the_platform_is_read_as_on_cuda(tmp_path: Path) -> None:
    arguments = """
        from vllm.platforms import current_platform

        class EngineArgs:
            block: int = 16 if not current_platform.is_hpu() else 128

            @staticmethod
            def add_cli_args(parser):
                parser.add_argument("--block", type=int, default=EngineArgs.block)
                kinds = [current_platform.device_type] if current_platform.is_cuda() else []
                parser.add_argument("--where", choices=["auto"] + kinds)
                parser.add_argument("--name", default=current_platform.device_name)
                return parser
    """
    platforms = """
        if there_is_a_tpu():
            from .tpu import TpuPlatform
            current_platform = TpuPlatform()
        else:
            current_platform = None
    """
    tree = LITERAL_STYLE | {"vllm/engine/arg_utils.py": arguments, "vllm/platforms/__init__.py": platforms}
    made = harvest(write(tree, tmp_path))
    assert made.flags["--block"].default == 16
    assert made.flags["--where"].choices == ["auto", "cuda"]
    assert made.flags["--name"].default is None
    assert [text.split(":")[0] for text in made.unresolved] == ["--name"]


def test_a_release_whose_get_kwargs_knows_no_booleans_adds_none(tmp_path: Path) -> None:
    """As 0.8.4, where the function stood inside add_cli_args."""
    arguments = """
        from vllm.config import CacheConfig

        class EngineArgs:
            @staticmethod
            def add_cli_args(parser):
                def get_kwargs(cls): ...

                cache = get_kwargs(CacheConfig)
                parser.add_argument("--on", action="store_true", **cache["on"])
                parser.add_argument("--budget", **cache["budget"])
                parser.add_argument("--size", **cache["size"])
                return parser
    """
    tree = LITERAL_STYLE | {k: v for k, v in CONFIG_STYLE.items() if k.startswith("vllm/config/")}
    made = harvest(write(tree | {"vllm/engine/arg_utils.py": arguments}, tmp_path))
    assert facts(made.flags["--on"]) == {"type": "bool", "kind": "store_true", "default": True}
    assert made.flags["--on"].negatives == []
    assert facts(made.flags["--budget"]) == {"type": "int", "default": 8}
    assert facts(made.flags["--size"]) == {"type": "str", "default": None, "optional": True}

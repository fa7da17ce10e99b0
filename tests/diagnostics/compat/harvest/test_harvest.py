from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from camshaft.diagnostics.compat.harvest.add import add_tables, records, stored_tables
from camshaft.diagnostics.compat.harvest.errors import HarvestError
from camshaft.diagnostics.compat.harvest.release import Harvest, harvest
from camshaft.diagnostics.compat.releases.table import Flag
from camshaft.diagnostics.compat.rules import phrasing

RELEASES = yaml.safe_load(Path(__file__).with_name("releases.yaml").read_text(encoding="utf-8"))
CONFIG_STYLE: dict[str, str] = RELEASES["config_style"]
LITERAL_STYLE: dict[str, str] = RELEASES["literal_style"]


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


def test_refusals_are_conditions_that_hold_only_where_the_release_raises(found: Harvest) -> None:
    assert [phrasing.text(refusal.when) for refusal in found.refusals.values()] == [
        "0 >= share or share > 1",
        'kind == "fp8" and budget > 9',
        "size != null and (budget < 2 or count(sizes) == 0)",
        'size != null and kind not in ["auto", "fp8"]',
        'some word in words with "+" not in word and (item(word, 0) != "-" and count(word) > 8)',
        "distinct(words) < 2",
        'budget < 2 and some word in words with not (matches(word, "[a-z]+"))',
        "quiet and port < 1",
    ]
    assert {refusal.evidence.split(":")[0] for refusal in found.refusals.values()} == {
        "vllm/config/cache.py", "vllm/config/vllm.py", "vllm/entrypoints/openai/cli_args.py",
    }  # fmt: skip


def test_spellings_group_field_and_places_are_kept(found: Harvest) -> None:
    share = found.flags["--share"]
    assert (share.aliases, share.group, share.field) == (["--portion"], "CacheConfig", "CacheConfig.share")
    assert share.evidence.startswith("vllm/engine/arg_utils.py:")
    assert share.defined.startswith("vllm/config/cache.py:")
    assert found.flags["--size"].field == "Base.size"
    assert found.flags["--port"].aliases == ["-p"]
    assert found.flags["--enable-on"].negatives == ["--no-enable-on", "--disable-on"]
    assert found.flags["--limit"].resolved.startswith("vllm/engine/arg_utils.py:")


def test_the_bounds_of_a_number_are_kept(found: Harvest) -> None:
    assert found.flags["--share"].bounds == {"gt": 0, "le": 1}
    assert found.flags["--size"].bounds == {}


def test_the_keys_of_an_object_have_the_types_and_choices_of_its_fields(found: Harvest) -> None:
    keys = found.flags["--extra-config"].nested
    assert {name: (key.type, key.choices) for name, key in keys.items()} == {
        "depth": ("int", None),
        "grade": ("str", ["a", "b", "c", None]),
        "width": ("int|str", None),
    }


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
        harvest(write({"vllm/__init__.py": "", "vllm/config/vllm.py": ""}, tmp_path))


def test_a_release_added_between_two_others_leaves_them_as_they_were(tmp_path: Path) -> None:
    flags = {name: Flag(name=name, type="int", default=1, evidence="x.py:3") for name in ("--a", "--b")}
    changed = {"--a": Flag(name="--a", type="int", default=2, evidence="x.py:9")}
    add_tables("vllm", {"0.2.0": records(flags, {}, {}), "0.10.0": records(flags, {}, {})}, tmp_path)
    before = stored_tables(tmp_path)
    add_tables("vllm", {"0.9.0": records(changed, {}, {})}, tmp_path)
    after = stored_tables(tmp_path)
    assert list(after) == ["0.2.0", "0.9.0", "0.10.0"]
    assert {version: after[version] for version in before} == before
    assert after["0.9.0"][0] == {"--a": {"type": "int", "default": 2, "evidence": "x.py:9"}}


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

from __future__ import annotations

import pytest

from camshaft import __version__
from camshaft.core.config import ServeConfig, load_config
from camshaft.diagnostics.compat.harvest.add import records
from camshaft.diagnostics.compat.harvest.own import overdue, own_release, own_table
from camshaft.diagnostics.compat.parsing.conversion import convert
from camshaft.diagnostics.compat.releases.storage import open_store
from camshaft.diagnostics.compat.releases.table import Flag, Table, load
from camshaft.diagnostics.compat.releases.versions import parse, versions


def test_the_stored_table_of_this_release_equals_the_code() -> None:
    store = open_store("camshaft")
    assert store is not None
    made = records(own_table().flags, own_table().env, {})
    stored = store.flags_at(__version__), store.environment_at(__version__), store.refusals_at(__version__)
    assert stored == made, "run: engine matrix harvest --engine camshaft"


def test_this_release_is_the_newest_with_a_table() -> None:
    assert versions("camshaft")[-1] == own_release()


def test_every_knob_is_a_flag_with_its_own_default() -> None:
    flags = load("camshaft", own_release()).flags
    assert {flag.field for flag in flags.values() if flag.name != "--preset"} == {
        f"ServeConfig.{name}" for name in ServeConfig.model_fields
    }
    defaults = ServeConfig(model="m")
    for name in ServeConfig.model_fields.keys() - {"model"}:
        value = getattr(defaults, name)
        assert flags["--" + name.replace("_", "-")].default == (
            list(value) if isinstance(value, tuple) else value
        )


@pytest.mark.parametrize(
    ("name", "type_name", "parse_name", "choices"),
    [
        ("--max-num-batched-tokens", "int", "human_readable", None),
        ("--max-model-len", "int", "human_readable_or_auto", None),
        ("--kv-cache-memory-bytes", "int", "human_readable_bytes", None),
        ("--gpu-memory-utilization", "float", None, None),
        ("--enable-prefix-caching", "bool", None, None),
        ("--hf-overrides", "json", None, None),
        ("--policy", "json|str", None, None),
        ("--api-key", "list[str]", None, None),
        ("--cudagraph-capture-sizes", "list[int]", None, None),
        ("--device", "str", None, ["auto", "cpu", "cuda"]),
        ("--scheduling-policy", "str", None, ["fcfs", "priority"]),
        ("--load-format", "str", None, ["auto", "safetensors", "gguf", "dummy"]),
    ],
)
def test_types_are_named_as_in_other_engines_tables(
    name: str, type_name: str, parse_name: str | None, choices: list[str] | None
) -> None:
    flag = load("camshaft", own_release()).flags[name]
    assert (flag.type, flag.parse, flag.choices) == (type_name, parse_name, choices)


@pytest.mark.parametrize("text", ["1GiB", "1.5 GiB", "24GB", "2G", "64k", "4096"])
def test_a_size_is_judged_as_it_is_read(text: str) -> None:
    flag = load("camshaft", own_release()).flags["--max-body-bytes"]
    assert convert(flag, [text]) == load_config({"model": "m", "max_body_bytes": text}).config.max_body_bytes


def test_nothing_whose_removal_is_due_is_still_accepted() -> None:
    assert overdue(load("camshaft", own_release())) == []


@pytest.mark.parametrize(
    ("release", "expected"), [("0.2.9", []), ("0.3.0", ["--old"]), ("0.4.0", ["--old"]), ("0.3.0rc1", [])]
)
def test_a_removal_is_due_from_the_release_it_names(release: str, expected: list[str]) -> None:
    old = Flag(name="--old", type="int", deprecated="deprecated; to be removed in 0.3.0; use --new")
    flags = {flag.name: flag for flag in (old, Flag(name="--new", type="int"))}
    assert overdue(Table("camshaft", parse(release), flags, {})) == expected

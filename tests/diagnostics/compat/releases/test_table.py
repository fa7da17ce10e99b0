from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.diagnostics.compat.releases.difference import difference
from camshaft.diagnostics.compat.releases.storage import Store, save
from camshaft.diagnostics.compat.releases.table import Table, load
from camshaft.diagnostics.compat.releases.versions import UnknownVersion, parse, versions

VERSIONS = versions("vllm")


def table(version: str) -> Table:
    return load("vllm", parse(version))


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_every_table_is_whole(version: Any) -> None:
    found = load("vllm", version)
    assert len(found.flags) > 100
    assert len(found.env) > 55
    assert {
        "--model",
        "--max-num-seqs",
        "--gpu-memory-utilization",
        "--port",
        "--config",
    } <= found.flags.keys()
    for flag in found.flags.values():
        assert flag.name.startswith("--")
        assert flag.evidence.startswith("vllm/")
        assert flag.evidence.rsplit(":", 1)[1].isdigit()
        assert flag.resolver is None or flag.default is None
        if flag.kind == "value" and flag.choices and flag.default:
            assert flag.default in flag.choices
    assert all(variable.evidence.startswith("vllm/envs.py:") for variable in found.env.values())


@pytest.mark.parametrize(
    ("flag", "last_with", "first_without"),
    [
        ("--swap-space", "0.17.1", "0.18.0"),
        ("--num-scheduler-steps", "0.10.0", "0.10.1"),
        ("--use-v2-block-manager", "0.9.2", "0.10.0"),
        ("--speculative-model", "0.8.2", "0.8.3"),
        ("--guided-decoding-backend", "0.11.2", "0.12.0"),
        ("--disable-log-requests", "0.16.0", "0.17.0"),
        ("--device", "0.9.2", "0.10.0"),
        ("--task", "0.12.0", "0.13.0"),
        ("--max-num-partial-prefills", "0.26.0", "0.27.0"),
        ("--calculate-kv-scales", "0.27.1", "0.28.0"),
        ("--worker-use-ray", "0.6.6.post1", "0.7.0"),
        ("--max-seq-len-to-capture", "0.10.2", "0.11.0"),
        ("--rope-scaling", "0.11.0", "0.11.1"),
        ("--cuda-graph-sizes", "0.12.0", "0.13.0"),
    ],
)
def test_removals_are_dated_to_the_release(flag: str, last_with: str, first_without: str) -> None:
    known = list(map(str, VERSIONS))
    assert known.index(first_without) == known.index(last_with) + 1
    assert flag in table(last_with).flags
    assert flag not in table(first_without).flags


@pytest.mark.parametrize(
    ("flag", "version", "default"),
    [
        ("--gpu-memory-utilization", "0.19.1", 0.9),
        ("--gpu-memory-utilization", "0.20.0", 0.92),
        ("--max-num-seqs", "0.6.4.post1", 256),
        ("--max-num-seqs", "0.6.5", None),
        ("--generation-config", "0.7.3", None),
        ("--generation-config", "0.8.0", "auto"),
        ("--guided-decoding-backend", "0.6.4", "outlines"),
        ("--guided-decoding-backend", "0.6.5", "xgrammar"),
        ("--allowed-origins", "0.31.0", ["*"]),
        ("--allowed-origins", "0.32.0", []),
        ("--seed", "0.11.2", None),
        ("--seed", "0.12.0", 0),
        ("--prefix-caching-hash-algo", "0.10.1", "builtin"),
        ("--prefix-caching-hash-algo", "0.10.2", "sha256"),
        ("--compilation-config", "0.18.0", {}),
    ],
)
def test_defaults_are_dated_to_the_release(flag: str, version: str, default: Any) -> None:
    assert table(version).flags[flag].default == default


def test_a_default_that_code_computes_names_its_resolver_and_where_it_is() -> None:
    flag = table("0.18.0").flags["--max-num-batched-tokens"]
    assert flag.default is None
    assert flag.resolver == "max_num_batched_tokens"
    assert flag.resolved.startswith("vllm/engine/arg_utils.py:")
    assert flag.parse == "human_readable"
    assert table("0.6.0").flags["--max-num-seqs"].resolver is None


def test_defaults_point_at_the_line_that_sets_them() -> None:
    flag = table("0.33.0").flags["--gpu-memory-utilization"]
    assert flag.field == "CacheConfig.gpu_memory_utilization"
    assert flag.defined == "vllm/config/cache.py:215"


def test_json_keys_are_nested_fields() -> None:
    keys = table("0.18.0").flags["--speculative-config"].nested
    assert keys["num_speculative_tokens"].type == "int"
    assert "eagle3" in (keys["method"].choices or [])
    assert "medusa" not in (table("0.33.0").flags["--speculative-config"].nested["method"].choices or [])
    assert "pass_config.eliminate_noops" in table("0.33.0").flags["--compilation-config"].nested


@pytest.mark.parametrize(
    ("version", "flag", "said"),
    [
        ("0.10.1", "--disable-mm-preprocessor-cache", ("0.13", "--mm-processor-cache-gb")),  # an argument
        ("0.6.4", "--use-v2-block-manager", ("no effect",)),  # the help text
        (
            "0.33.0",
            "--log-config-file",
            ("0.33.0", "--logging-config.pylogging_config_file"),
        ),  # a custom action
        ("0.33.0", "--ir-op-priority", ("0.34.0",)),  # a warning in code
    ],
)
def test_each_channel_of_deprecation_is_read(version: str, flag: str, said: tuple[str, ...]) -> None:
    told = table(version).flags[flag].deprecated
    assert told is not None
    assert all(part in told for part in said)


def test_a_deprecated_value_does_not_make_its_flag_deprecated() -> None:
    assert table("0.13.0").flags["--convert"].deprecated is None


@pytest.mark.parametrize(
    ("version", "spelled", "name"),
    [
        ("0.33.0", "--max_num_seqs", "--max-num-seqs"),
        ("0.33.0", "max-num-seqs", "--max-num-seqs"),
        ("0.33.0", "-tp", "--tensor-parallel-size"),
        ("0.33.0", "--tensor-parallel-size=4", "--tensor-parallel-size"),
        ("0.33.0", "--compilation-config.mode", "--compilation-config"),
        ("0.33.0", "-cc.mode", "--compilation-config"),
        ("0.33.0", "--no-enable-prefix-caching", "--enable-prefix-caching"),
        ("0.33.0", "--disable-prefix-caching", "--enable-prefix-caching"),
        ("0.33.0", "--device-memory-utilization", "--gpu-memory-utilization"),
        ("0.32.0", "--disable-prefix-caching", None),
        ("0.8.0", "--no-enforce-eager", None),
        ("0.33.0", "--swap-space", None),
        ("0.33.0", "", None),
        ("0.33.0", "--", None),
    ],
)
def test_every_spelling_finds_its_flag(version: str, spelled: str, name: str | None) -> None:
    flag = table(version).find(spelled)
    assert (flag and flag.name) == name


def test_the_negative_form_is_told_from_the_positive_one() -> None:
    found = table("0.33.0")
    assert found.is_negative("--no-enable-prefix-caching")
    assert found.is_negative("--disable_prefix_caching")
    assert not found.is_negative("--enable-prefix-caching")
    assert not found.is_negative("--nothing")


def test_a_release_without_a_table_is_refused() -> None:
    with pytest.raises(UnknownVersion):
        load("vllm", parse("0.33.9"))


def test_a_table_differs_from_its_neighbour_in_what_changed_and_not_from_itself() -> None:
    found = difference(table("0.17.1"), table("0.18.0"))
    assert "--swap-space" in found.flags.removed
    assert "--grpc" in found.flags.added
    assert [change.what for change in found.flags.changed["--disable-cascade-attn"]] == ["default"]
    assert "--compilation-config.level" in found.keys.removed
    same = difference(table("0.18.0"), table("0.18.0"))
    assert same.flags.empty
    assert same.keys.empty
    assert same.environment.empty


def test_loading_a_table_imports_nothing_heavy() -> None:
    code = (
        "import sys; from camshaft.diagnostics.compat.releases.table import load;"
        "from camshaft.diagnostics.compat.releases.versions import resolve;"
        "load('vllm', resolve('vllm', None)[0]);"
        "print([m for m in ('pydantic', 'torch', 'yaml', 'click', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_tables_stay_compact() -> None:
    import camshaft.diagnostics.compat.releases as package

    folder = Path(next(iter(package.__path__))) / "tables"
    assert sum(path.stat().st_size for path in folder.rglob("*.json")) < 600_000


words = st.sampled_from(["--a", "--b", "--c", "--d"])
places = st.builds(
    lambda path, line: f"{path}:{line}", st.sampled_from(["x/a.py", "x/b.py"]), st.integers(1, 99)
)
records = st.fixed_dictionaries(
    {"type": st.sampled_from(["int", "str"])},
    optional={
        "default": st.integers(0, 2) | st.none(),
        "evidence": places | st.just("x/whole.py"),
        "defined": places,
        "nested": st.dictionaries(
            st.sampled_from(["k", "k.l"]), st.fixed_dictionaries({"type": st.just("int")}), min_size=1
        ),
    },
)
releases = st.dictionaries(
    st.sampled_from(["0.1.0", "0.2.0", "0.10.0", "0.10.1", "0.11.0"]),
    st.tuples(
        st.dictionaries(words, records),
        st.dictionaries(words, st.fixed_dictionaries({"evidence": places})),
        st.dictionaries(words, st.fixed_dictionaries({"when": st.just(["lit", True]), "evidence": places})),
    ),
    min_size=1,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(releases)
def test_what_is_stored_is_read_back_for_every_release(tables: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        order = sorted(tables, key=parse)
        save(Path(folder), order, tables)
        store = Store(Path(folder))
        assert store.versions == order
        for version in order:
            assert store.flags_at(version) == tables[version][0]
            assert store.environment_at(version) == tables[version][1]
            assert store.refusals_at(version) == tables[version][2]

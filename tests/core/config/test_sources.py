"""A configuration file is read as its author meant it, or refused with the place of the mistake."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.arithmetic.model_sheets import shape_named
from camshaft.core.config import (
    Hardware,
    Purpose,
    ServeConfig,
    json_schema,
    load_config,
    preset_names,
    require_machine,
    resolve,
)
from camshaft.core.config.sources import vllm_names
from camshaft.core.errors import CamshaftError, ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "serve.yaml"
    file.write_text(text)
    return file


def test_a_vllm_configuration_is_a_valid_start(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "model: org/m\nserved-model-name: [a, b]\nmax-model-len: 32k\nmax_num_batched_tokens: 2K\n"
        "kv-cache-memory-bytes: 1.5g\nno-enable-prefix-caching: true\napi-key: s3cret\nport: 9000\n"
        "allowed-origins: '[\"*\"]'\ndisable-log-requests: true\n"
        "override-generation-config: '{\"temperature\": 0.5}'\n",
    )
    config = load_config(file).config
    assert config.served_model_name == ("a", "b")
    assert config.max_model_len == 32_000
    assert config.max_num_batched_tokens == 2048
    assert config.kv_cache_memory_bytes == 1_500_000_000
    assert config.enable_prefix_caching is False
    assert config.allowed_origins == ("*",)
    assert config.enable_log_requests is False
    assert config.api_key == ("s3cret",)
    assert config.override_generation_config == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("1GiB", 1 << 30),
        ("1.5 GiB", 3 << 29),
        ("24GB", 24 * 10**9),
        ("2G", 2 << 30),
        ("64k", 64_000),
        (4096, 4096),
    ],
)
def test_a_size_may_have_its_unit(written: str | int, size: int) -> None:
    config = load_config({"model": "m", "kv_cache_memory_bytes": written, "max_body_bytes": written}).config
    assert (config.kv_cache_memory_bytes, config.max_body_bytes) == (size, size)
    pattern = json_schema()["properties"]["max_body_bytes"]["anyOf"][1]["pattern"]
    assert isinstance(written, int) or re.search(pattern, written)


@pytest.mark.parametrize("written", ["1 gig", "GiB", "1GiBs", "-1GiB", "lots"])
def test_no_size_is_said_with_one_that_is(written: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes: a size is needed, such as 2GiB"):
        load_config({"model": "m", "kv_cache_memory_bytes": written})


def test_every_key_knows_its_place(tmp_path: Path) -> None:
    file = write(tmp_path, "# a comment\nmodel: m\n\nmax-num-seqs: 4\n")
    loaded = load_config(file, ["port=1"])
    entry = loaded.entries["max_num_seqs"]
    assert (entry.place.file, entry.place.line, entry.place.column) == (str(file), 4, 1)
    assert entry.spelled == "max-num-seqs"
    assert str(loaded.entries["port"].place) == "--set port"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: m\nmax_num_seq: 3\n",
            r"serve.yaml:2:1: max_num_seq: unknown key; did you mean max_num_seqs\?",
        ),
        ("model: m\nzzz: 3\n", r"serve.yaml:2:1: zzz: unknown key; `engine config schema` lists"),
        ("model: m\nport: 1\nport: 2\n", r"serve.yaml:3:1: port: given twice; first on line 2"),
        (
            "max-num-seqs: 1\nmodel: m\nmax_num_seqs: 2\n",
            r"serve.yaml:3:1: max_num_seqs: given twice; first as max-num-seqs on line 1",
        ),
        ("model: m\npolicy: {name: a, name: b}\n", r"serve.yaml:2:19: name: given twice"),
        ("model: m\nmax_num_seqs: true\n", r"serve.yaml:2:1: max_num_seqs: a number is needed, not true"),
        (
            "model: m\nmax_num_seqs: 0\n",
            r"max_num_seqs: must be at least 1 \(given: 0\)",
        ),
        ("model: m\nmax_num_seqs: 1k\n", r"max_num_seqs: a whole number is needed \(given: '1k'"),
        ("model: m\nmax_model_len: 1.5K\n", r"did you mean 1\.5k\?"),
        ("model: m\nmax_model_len: 0\n", r"max_model_len: must be at least 1, or -1 or auto"),
        ("model: m\nport: 70000\n", r"port: .*65535"),
        ("model: m\nmax_wait_s: .inf\n", r"max_wait_s: must be finite \(given: inf\)"),
        ("model: m\ndtype: fp32\n", r"dtype: must be 'auto', 'float32'"),
        ("model: m\ngpu_memory_utilization: 1.5\n", r"gpu_memory_utilization: .*must be at most 1"),
        ("model: m\nhf_overrides: '{bad'\n", r"hf_overrides: not valid JSON"),
        ('model: m\nhf_overrides: \'{"a":' + "[" * 100_000 + "'\n", r"hf_overrides: not valid JSON"),
        ("model: m\npolicy: nonsense: 3\n", r"serve.yaml:2:17: not valid YAML"),
        ("- a\n- b\n", r"serve.yaml:1:1: a mapping of keys to values is needed, not a sequence"),
        ("? [a, b]\n: 3\n", r"serve.yaml:1:3: a key must be a plain name"),
        ("x: &x {a: 1}\n<<: *x\n", r"serve.yaml:2:1: YAML merge keys are not read here"),
        ("a: &a [*a]\n", "an alias that contains itself"),
        ("model: m\nport: 1\n\tx: 2\n", "not valid YAML"),
        ("", "model: missing"),
        (
            "model: m\nno-enable-prefix-caching:\n",
            r"serve.yaml:2:1: no-enable-prefix-caching: true or false is needed",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_a_file_that_is_not_text_and_one_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file)
    with pytest.raises(ConfigError, match=r"no such file or preset; did you mean cpu-demo\?"):
        load_config("cpu-dem")
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)
    for impossible in ("x" * 5000, "\0"):
        with pytest.raises(ConfigError, match="no such file or preset"):
            load_config(impossible)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("services:\n  llm:\n    command: --model m\n", "a compose file"),
        (
            "apiVersion: v1\nkind: Service\n---\napiVersion: apps/v1\nkind: Deployment\n",
            "a Kubernetes manifest",
        ),
        ("image: {{ .Values.image }}\nreplicaCount: 2\n", "Helm values"),
    ],
)
def test_a_manifest_is_named_as_what_it_is(tmp_path: Path, text: str, kind: str) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"is {kind}, no configuration: engine check-flags") as caught:
        load_config(file)
    assert "did you mean" not in str(caught.value)


def test_what_is_no_file_or_far_too_large(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is no file"):
        load_config(tmp_path / "pipe")
    (tmp_path / "large.yaml").write_text("#" * (5 << 20))
    with pytest.raises(ConfigError, match="is larger than 4 MiB"):
        load_config(tmp_path / "large.yaml")


def test_a_key_on_the_command_line_is_named_once() -> None:
    for word, says in (("port=-1", "--set port: must"), ("--max-num-seqs=0", "--max-num-seqs: must")):
        with pytest.raises(ConfigError) as caught:
            load_config({"model": "m"}, [word])
        assert str(caught.value).startswith(says)


def test_a_model_that_was_named_wrongly_is_not_called_missing() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({"model": 5})
    assert str(refused.value) == "(given): model: text is needed (given: 5)"


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_a_switch_is_turned_off_as_in_vllm(value: object) -> None:
    assert (
        load_config({"model": "m", "no-enable-prefix-caching": value}).config.enable_prefix_caching is False
    )


def test_aliases_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="once its aliases are unfolded"):
        load_config(write(tmp_path, "\n".join(lines)))


UNSUPPORTED = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "data_parallel_size": 2,
    "enable_expert_parallel": True,
    "distributed_executor_backend": "ray",
    "speculative_config": {"method": "ngram"},
    "enable_lora": True,
    "trust_remote_code": True,
    "kv_cache_dtype": "fp8_e5m2",
    "load_format": "runai_streamer",
    "revision": "main",
    "download_dir": "models",
    "hf_overrides": {"rope_theta": 1},
    "hf_config_path": "elsewhere",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_known_and_unsupported_is_refused_by_name_for_serving_alone(name: str) -> None:
    source = {"model": "m", name: UNSUPPORTED[name]}
    with pytest.raises(ConfigError, match=f"{name}=.*known, not supported by this engine"):
        load_config(source)
    assert getattr(load_config(source, purpose="inspect").config, name) == UNSUPPORTED[name]


def test_all_unsupported_knobs_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({**UNSUPPORTED, "model": "m"})
    assert all(name in str(caught.value) for name in UNSUPPORTED)


def test_a_vllm_knob_that_this_engine_lacks_is_refused_by_name_never_ignored() -> None:
    source = {"model": "m", "compilation-config": {"mode": 3}}
    with pytest.raises(
        ConfigError, match="compilation-config: a knob of vLLM that this engine does not have"
    ):
        load_config(source)
    loaded = load_config(source, purpose="inspect")
    assert loaded.foreign["compilation_config"].value == {"mode": 3}
    with pytest.raises(ConfigError, match="unknown key"):
        load_config({"model": "m", "compilation_confi": 1}, purpose="inspect")


def test_overrides_win_and_reach_inside() -> None:
    config = load_config(
        "cpu-demo", ["max-num-seqs=3", "policy=latency", "policy.chunking.itl_target_ms=25"]
    ).config
    assert config.max_num_seqs == 3
    assert isinstance(config.policy, dict)
    assert config.policy["chunking"] == {"name": "adaptive", "itl_target_ms": 25}
    config = load_config("cpu-demo", ["policy.chunking.tokens=64"]).config
    assert isinstance(config.policy, dict)
    assert config.policy["chunking"] == {"name": "fixed", "tokens": 64}
    assert load_config("cpu-demo", {"port": 1, "host": None}).config.port == 1
    for bad in ("port", "=3", "port.x=3", "model=caf\udce9"):
        with pytest.raises(ConfigError, match="--set"):
            load_config("cpu-demo", [bad])


def test_a_file_starts_from_a_preset(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, "preset: cpu-demo\nmax_num_seqs: 5\n"))
    assert loaded.config.model == "smollm2-135m-instruct"
    assert loaded.config.max_num_seqs == 5
    assert (loaded.origin("max_num_seqs"), loaded.origin("model"), loaded.origin("port")) == (
        "given",
        "preset",
        None,
    )
    with pytest.raises(ConfigError, match=r"serve.yaml:1:1: preset: .*no such file or preset"):
        load_config(write(tmp_path, "preset: nothing\n"))
    with pytest.raises(ConfigError, match="cannot be its own preset"):
        load_config(write(tmp_path, f"preset: {tmp_path / 'serve.yaml'}\n"))


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_found_by_its_name_with_and_without_ending(name: str) -> None:
    assert load_config(name, purpose="inspect").preset == name
    assert load_config(f"{name}.yaml", purpose="inspect").preset == name


def test_a_configuration_is_frozen_and_crosses_processes() -> None:
    config = load_config("cpu-demo", ["api_key=[hunter2, b]", "policy={order: priority}"]).config
    assert "hunter2" not in repr(config)
    assert ServeConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(Exception, match="frozen"):
        config.port = 1  # type: ignore[misc]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


# As users write them: both spellings, switched off, of this engine and of vLLM alone, values as text.
KEYS = st.builds(
    lambda name, off, dashed: (off + name).replace("_", "-") if dashed else off + name,
    st.sampled_from(sorted(ServeConfig.model_fields) + sorted(vllm_names())),
    st.sampled_from(["", "", "no_", "--"]),
    st.booleans(),
)
WRITTEN = st.sampled_from(
    [
        "true",
        "None",
        "auto",
        "16",
        "1k",
        "1.5K",
        "0.9",
        "-1",
        "{}",
        '{"a": 1}',
        '{"a":',
        '["a"]',
        "[",
        "fp8",
        "cuda",
    ]
)
H100 = Hardware(kind="cuda", name="H100", memory_bytes=80 << 30, count=1, compute_capability=(9, 0))
CPU = Hardware(kind="cpu", name="a CPU", memory_bytes=32 << 30, count=1)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    mapping=st.dictionaries(KEYS | st.text(max_size=8), JSON | WRITTEN, max_size=4),
    purpose=st.sampled_from(["serve", "inspect"]),
    is_model_known=st.booleans(),
)
def test_any_mapping_is_read_or_refused(
    mapping: dict[str, object], purpose: Purpose, is_model_known: bool
) -> None:
    """Read and resolved for a GPU and a CPU, or refused in words."""
    model = shape_named("meta-llama/Llama-3.1-8B-Instruct") if is_model_known else None
    with contextlib.suppress(CamshaftError):  # and no other error
        loaded = load_config({"model": "m", **mapping}, purpose=purpose)
        for device in (H100, CPU):
            with contextlib.suppress(CamshaftError):
                require_machine(resolve(loaded, device, model))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(text=st.text(max_size=60) | st.builds(yaml.safe_dump, JSON))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("any") / "serve.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with contextlib.suppress(ConfigError):  # and no other error
        assert load_config(file).config.model


def test_configurations_need_no_torch() -> None:
    code = (
        "import sys; from camshaft.core.config import *;"
        "resolve(load_config('cpu-demo'), find_cpu()); json_schema(); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_every_refused_key_of_a_file_is_said_at_once(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "model: m\nuvicorn-log-level: info\nmax-num-seqs: 0\nenable-lora: true\ntool-call-parser: hermes\n"
        "max_num_sqs: 3\n",
    )
    with pytest.raises(ConfigError) as refused:
        load_config(file)
    places = [line.removeprefix(str(file)).split(" ")[:2] for line in str(refused.value).splitlines()]
    assert places == [
        [":2:1:", "uvicorn-log-level:"],
        [":3:1:", "max-num-seqs:"],
        [":4:1:", "enable_lora=True:"],
        [":5:1:", "tool-call-parser:"],
        [":6:1:", "max_num_sqs:"],
    ]
    with pytest.raises(ConfigError) as inspected:
        load_config(file, purpose="inspect")
    assert len(str(inspected.value).splitlines()) == 2

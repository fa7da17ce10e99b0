"""`engine config` shows what is in force and where it came from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from camshaft.cli.main import main
from camshaft.core.config import ServeConfig, preset_names


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments])


def test_show_prints_every_value_with_its_origin_as_yaml() -> None:
    result = run("show", "cpu-demo", "--set", "max-num-seqs=9")
    assert result.exit_code == 0, result.output
    values = yaml.safe_load(result.stdout)
    assert set(values) == set(ServeConfig.model_fields)
    assert values["max_num_seqs"] == 9
    lines = {line.split(":")[0]: line for line in result.stdout.splitlines() if ":" in line}
    assert "# given: --set max-num-seqs" in lines["max_num_seqs"]
    assert "# preset: cpu-demo.yaml:" in lines["model"]
    assert "# policy: continuous-chunked" in lines["enable_chunked_prefill"]


def test_show_as_json_names_hardware_policy_and_refusal() -> None:
    result = run("show", "cpu-demo", "--format", "json", "--set", "tensor_parallel_size=2")
    shown = json.loads(result.stdout)
    assert shown["values"]["block_size"] == {
        "value": 16,
        "origin": "default",
        "why": "16 tokens waste about 8 a sequence",
    }
    assert shown["policy"]["name"] == "continuous-chunked"
    assert "CPU" in shown["hardware"]
    assert "tensor_parallel_size=2: known, not supported" in shown["refused"]


def test_show_without_hardware_guesses_nothing() -> None:
    result = run("show", "cpu-demo", "--device", "none", "--format", "json", "--set", "device=auto")
    shown = json.loads(result.stdout)
    assert shown["hardware"] is None
    assert shown["values"]["async_scheduling"]["origin"] == "unknown"


def test_a_gpu_can_be_named_that_is_not_here(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: meta-llama/Llama-3.1-8B-Instruct\nmax_model_len: 16k\n")
    shown = json.loads(run("show", str(file), "--gpu", "H100", "--format", "json").stdout)
    assert "H100" in shown["hardware"]
    assert shown["refused"] is None
    assert shown["values"]["max_num_batched_tokens"]["value"] == 8192
    assert shown["values"]["dtype"] == {
        "value": "bfloat16",
        "origin": "derived",
        "why": "the checkpoint's type",
    }
    shown = json.loads(run("show", str(file), "--gpu", "Tesla T4", "--format", "json").stdout)
    assert "GiB are missing" in shown["refused"]
    assert shown["values"]["max_num_batched_tokens"]["value"] == 2048
    refused = run("show", str(file), "--gpu", "H1000")
    assert refused.exit_code == 2
    assert "unknown device 'H1000'" in refused.output


def test_changed_is_what_was_written_and_differs_from_the_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: smollm2-135m-instruct\nport: 8000\nmax_num_seqs: 7\npolicy: naive\n")
    changed = run("show", str(file), "--set", "max_num_seqs=1", "--changed")
    assert yaml.safe_load(changed.stdout) == {
        "model": "smollm2-135m-instruct",
        "policy": "naive",
        "max_num_seqs": 1,
        "enable_chunked_prefill": False,
        "max_wait_s": 86400.0,
    }
    shown = json.loads(run("show", "cpu-demo", "--changed", "--format", "json").stdout)["values"]
    assert "kv_cache_memory_bytes" in shown
    assert not {"block_size", "enable_chunked_prefill", "kv_cache_dtype"} & set(shown)


def test_a_key_is_never_shown() -> None:
    result = run("show", "cpu-demo", "--set", "api_key=hunter2", "--changed")
    assert "(set)" in result.stdout
    assert "hunter2" not in run("show", "cpu-demo", "--set", "api_key=hunter2", "--format", "json").stdout
    assert "hunter2" not in result.stdout


@pytest.mark.parametrize("source", ["nothing.yaml", "cpu-dem"])
def test_a_wrong_source_is_an_error_with_advice(source: str) -> None:
    result = run("show", source)
    assert result.exit_code == 2
    assert "no such file or preset" in result.output


def test_a_wrong_key_is_an_error_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: m\nmax_num_seq: 3\n")
    result = run("show", str(file))
    assert result.exit_code == 2
    assert "c.yaml:2:1: max_num_seq: unknown key; did you mean max_num_seqs?" in result.output


def test_the_schema_accepts_what_the_engine_accepts() -> None:
    schema = json.loads(run("schema").stdout)
    assert schema["additionalProperties"] is False
    assert {"max_num_seqs", "max-num-seqs", "preset"} <= set(schema["properties"])
    assert all(name in schema["properties"] for name in ServeConfig.model_fields)
    assert schema["properties"]["max_num_seqs"]["description"]
    assert {"minimum": 1, "type": "integer"} in schema["properties"]["max_num_seqs"]["anyOf"]
    (switched_off,) = schema["patternProperties"]
    assert re.match(switched_off, "no-enable-prefix-caching")
    assert re.match(switched_off, "disable-log-requests")
    assert not re.match(switched_off, "no-model")


def test_what_ships_is_listed() -> None:
    everything = run("list").stdout
    assert [line for line in everything.splitlines() if not line.startswith(" ")] == [
        "presets:", "workloads:", "gpus:", "models:", "policies:",
    ]  # fmt: skip
    assert re.search(r"^  chat +64 people chatting at once$", everything, re.M)
    gpus = json.loads(run("list", "gpus", "--format", "json").stdout)["gpus"]
    assert gpus["h100-sxm"] == "H100 SXM"
    assert [line.split()[0] for line in run("list", "presets").stdout.splitlines()] == preset_names()
    assert all(
        what for kind in json.loads(run("list", "--format", "json").stdout).values() for what in kind.values()
    )
    assert run("list", "nonsense").exit_code == 2

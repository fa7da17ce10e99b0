"""`engine serve`: what is refused before anything is loaded, and how."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from camshaft.cli.explain import explain
from camshaft.cli.serve import serve


def run(*arguments: str) -> Result:
    return CliRunner().invoke(serve, list(arguments))


def test_nothing_to_serve_names_the_demo() -> None:
    result = run()
    assert result.exit_code == 2
    assert "--config cpu-demo" in result.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: x\nmax_num_seq: 4\n", "max_num_seqs"),
        ("model: x\nport: high\n", "port"),
        ("model: x\ntensor_parallel_size: 2\n", "tensor_parallel_size"),
        ("model: [", "YAML"),
        ("max_num_seqs: 4\n", "model"),
        ("model: {here}\nmax_model_len: 9999999\n", "serve.yaml:2:1: max_model_len: 9999999"),
        ("model: {here}\nmax_num_batched_tokens: 8\nmax_num_seqs: 9\n", "serve.yaml:3:1: max_num_seqs 9"),
        (
            "model: {here}\nenable_chunked_prefill: false\nmax_num_batched_tokens: 70\nmax_model_len: 80\n",
            "serve.yaml:3:1: enable_chunked_prefill is off",
        ),
        ("model: {here}\nchat_template: ./none.jinja\n", "serve.yaml:2:1: chat_template './none.jinja'"),
        ("model: {here}\nport: 0\nssl_keyfile: x\n", "serve.yaml:3:1: ssl_keyfile needs ssl_certfile"),
        ("model: {here}\nssl_certfile: x\n", "serve.yaml:2:1: ssl_certfile x: not usable"),
        (
            "model: {here}\nrecord: ./none/x.jsonl\n",
            "serve.yaml:2:1: record ./none/x.jsonl: cannot be written",
        ),
        (
            "model: {here}\ngeneration_config: ./none\n",
            "serve.yaml:2:1: none/generation_config.json: no such file",
        ),
        ("model: {here}\nport: 0\nhost: 203.0.113.1\n", "serve.yaml:3:1: cannot listen on 203.0.113.1"),
    ],
)
def test_a_wrong_file_is_exit_code_2(tiny_llama: Path, tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text.replace("{here}", f"{tiny_llama}"))
    result = run("--config", str(file))
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_missing_model_says_what_was_tried(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "no such folder" in result.output


def test_a_preset_given_as_a_model_is_told_from_one() -> None:
    result = run("h100-70b")
    assert result.exit_code == 2
    assert "is a preset: engine serve --config h100-70b" in result.output


def test_a_configuration_given_as_a_model_is_told_from_one(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: m\n")
    result = run(str(file))
    assert result.exit_code == 2
    assert f"serve.yaml is a configuration: engine serve --config {file}" in result.output


def test_a_missing_file_names_the_presets() -> None:
    result = run("--config", "no-such")
    assert result.exit_code == 2
    assert "cpu-demo" in result.output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from camshaft.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "bad = {'torch', 'fastapi', 'transformers', 'numba', 'pydantic', 'zmq'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Examples" in done.stdout


def test_a_device_that_is_not_here_is_refused_before_loading(tiny_llama: Path) -> None:
    import torch

    if torch.cuda.is_available():
        result = run(str(tiny_llama), "--set", "gpu_memory_utilization=0.0001", "--port", "0")
        assert result.exit_code == 1
        return
    result = run(str(tiny_llama), "--set", "device=cuda", "--port", "0")
    assert result.exit_code == 2
    assert "cpu-demo" in result.output


def test_truncated_weights_start_no_half_a_server(tiny_llama: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_llama, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    options = ("--set", "device=cpu", "--set", "max_model_len=256", "--set", "num_gpu_blocks_override=64")
    result = run(str(broken), *options, "--port", "0")
    assert result.exit_code == 2, result.output
    assert "model.safetensors" in result.output
    assert "listening" not in result.output


def test_a_cache_too_small_for_one_sequence(tiny_llama: Path) -> None:
    options = ["device=cpu", "max_model_len=2048", "kv_cache_memory_bytes=64k"]
    result = run(str(tiny_llama), "--port", "0", *(part for option in options for part in ("--set", option)))
    assert result.exit_code == 1, result.output
    assert "Error" in result.output
    assert "Traceback" not in result.output


def test_from_the_command_to_the_openai_client_and_out(tiny_llama: Path, tmp_path: Path) -> None:
    import openai

    file = tmp_path / "serve.yaml"
    file.write_text(
        f"model: {tiny_llama}\nserved-model-name: tiny\ndevice: cpu\nmax-model-len: 256\nnum_gpu_blocks_override: 64\n"
    )
    command = [sys.executable, "-m", "camshaft", "serve", "--config", str(file), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            lines: list[str] = []
            for line in server.stderr:
                lines.append(line)
                if "listening on" in line:
                    break
            assert lines, "the server ended without a word"
            assert "listening on" in lines[-1], "".join(lines)
            url = lines[-1].split("listening on ")[1].split()[0]
            threading.Thread(target=server.stderr.read, daemon=True).start()
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                reply = client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, seed=1
                )
            assert reply.usage is not None
            assert reply.usage.completion_tokens <= 4
            told = CliRunner().invoke(explain, [reply.id, "--url", url])
            assert told.exit_code == 0, told.output
            assert "admitted" in told.output
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()

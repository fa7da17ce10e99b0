"""`engine diagnose` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from camshaft.cli.diagnose import _page, diagnose

LOAD = {
    "arrival": {"kind": "closed", "concurrency": 4, "requests": 12},
    "input_tokens": 64,
    "output_tokens": 16,
}


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(diagnose, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "vllm.yaml").write_text("max-num-seqs: 2\n")
    (tmp_path / "load.yaml").write_text(yaml.safe_dump(LOAD))
    (tmp_path / "server.log").write_text("Running: 2 reqs, Waiting: 14 reqs\n")
    return tmp_path


def test_log_and_figures_give_a_verdict_as_json(files: Path) -> None:
    status, out, _ = _run(
        str(files / "vllm.yaml"), "--log", str(files / "server.log"), "--observed", "per_request_tok_s=30",
        "--observed", "input_len=64", "--observed", "output_len=16", "--format", "json",
    )  # fmt: skip
    verdict = json.loads(out)["verdict"]
    assert status == 0
    assert (verdict["bottleneck"], verdict["knob"], verdict["from"], verdict["to"]) == (
        "admission_cap",
        "max_num_seqs",
        2,
        16,
    )


def test_two_paces_are_refused_before_any_evidence_is_read() -> None:
    status, _, err = _run("h100-8b", "--rate", "1", "--concurrency", "2", "--log", "no-such.log")
    assert status == 2
    assert "exclude each other" in err


def test_a_preset_on_its_device_is_replayed_and_written_as_a_page(files: Path) -> None:
    page = files / "report.html"
    status, out, _ = _run("h100-8b", "--workload", str(files / "load.yaml"), "--html", str(page))
    assert status == 0
    assert "Llama-3.1-8B" in out
    assert "no token comes faster than" in out
    assert "output tokens/s" in out
    assert "KV cache" in out
    assert page.read_text().startswith("<!doctype html>")


def test_a_command_line_is_a_configuration() -> None:
    command = "vllm serve meta-llama/Llama-3.3-70B-Instruct --quantization fp8 --max-model-len 16000 --gpu-memory-utilization 0.9"
    status, out, _ = _run(command, "--gpu", "H100", "--version", "0.18.0")
    assert status == 0
    assert "bottleneck: kv_does_not_fit" in out


def test_a_metrics_page_is_evidence(files: Path) -> None:
    (files / "metrics.txt").write_text(
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 2.0\n'
        '# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine="0"} 14.0\n'
        '# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine="0"} 0.05\n'
    )
    status, out, _ = _run(str(files / "vllm.yaml"), "--metrics", str(files / "metrics.txt"))
    assert status == 0
    assert out.startswith("raise max_num_seqs")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ((), 2, "give a CONFIG"),
        (("no-such-preset",), 2, "no such file, preset or model"),
        (("llama-3.1-8bb",), 2, "nearest: llama-3.1-8b,"),
        (("h100-8b", "--set", "max_num_sqs=2"), 2, "did you mean max_num_seqs?"),
        (("h100-8b", "--rate", "2", "--concurrency", "2"), 2, "exclude each other"),
        (("h100-8b", "--trace", "t", "--workload", "chat"), 2, "--trace and --workload exclude each other"),
        (("h100-8b", "--metrics", "m.txt", "--interval", "5"), 2, "--metrics twice"),
        (("h100-8b", "--gpu", ""), 2, "a name is needed"),
        (("h100-8b", "--gpu", "abacus"), 2, "abacus"),
        (("h100-8b", "--slo", "ttft"), 2, "target"),
        (("h100-8b", "--log", "no.log"), 2, "no.log"),
        (("h100-8b", "--observed", "nothing"), 2, "nothing"),
        (("h100-8b", "--workload", "nothing"), 2, "no such workload"),
        (("h100-8b", "--model", "nobody/nothing"), 2, "nobody/nothing"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: tuple[str, ...], status: int, told: str) -> None:
    code, out, err = _run(*arguments)
    assert code == status
    assert told in out + err
    assert "Traceback" not in out + err


def test_a_page_that_cannot_be_written_is_refused_before_any_work(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the diagnosis ran")

    monkeypatch.setattr("camshaft.cli.diagnose._report", work)
    for target, told in ((files / "no" / "x.html", "there is no folder"), (files, "is a folder")):
        code, out, err = _run("h100-8b", "--html", str(target))
        assert code == 2
        assert told in out + err


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://127.0.0.1:8032", "http://127.0.0.1:8032/metrics"),
        ("http://127.0.0.1:8032/", "http://127.0.0.1:8032/metrics"),
        ("http://gateway/engines/1/metrics", "http://gateway/engines/1/metrics"),
        ("localhost:9", "http://localhost:9/metrics"),
        ("node-3.lan:9000/metrics", "http://node-3.lan:9000/metrics"),
        ("before.txt", "before.txt"),
    ],
)
def test_the_address_of_a_server_means_its_metrics_page(given: str, asked: str) -> None:
    assert _page(given) == asked


def test_the_help_says_what_keeping_targets_means() -> None:
    _, out, _ = _run("--help")
    assert "99th percentile" in out
    assert "95 %" in out


def test_a_wrong_value_is_told_with_its_place(files: Path) -> None:
    file = files / "wrong.yaml"
    file.write_text("model: Qwen/Qwen3-8B\nmax-num-seqs: many\n")
    code, out, err = _run(str(file), "--gpu", "H100", "--workload", str(files / "load.yaml"))
    assert code == 2
    assert f"{file}:2:1: max-num-seqs" in out + err
    assert "(given):" not in out + err


def test_a_model_a_rate_and_knobs_are_enough(files: Path) -> None:
    (files / "load.yaml").write_text(
        yaml.safe_dump({**LOAD, "arrival": {"kind": "closed", "concurrency": 4, "requests": 80}})
    )
    status, out, _ = _run(
        "llama-3.1-8b", "--gpu", "L4", "--workload", str(files / "load.yaml"), "--rate", "40", "--set",
        "max_num_seqs=2", "--set", "max_model_len=2048", "--format", "json",
    )  # fmt: skip
    told = json.loads(out)
    assert status == 0
    assert told["about"]["model"] == "llama-3.1-8b"
    assert "40 a second" in told["about"]["load"]
    assert (told["verdict"]["knob"], told["verdict"]["from"]) == ("max_num_seqs", 2)


def test_the_load_is_chat_at_a_rate_where_only_the_rate_is_told() -> None:
    status, out, err = _run("llama-3.1-8b", "--gpu", "H100", "--rate", "12")
    assert status == 0
    assert "load: chat: 512 requests" in out
    assert "12 a second" in out
    assert "the lengths of the preset chat" in err


def test_the_help_lists_the_figures_that_the_complaint_about_another_does() -> None:
    _, out, _ = _run("--help")
    _, _, err = _run("--observed", "foo=3")
    told = " ".join(err.partition("It knows")[2].split())
    assert "output_tokens_per_s" in told
    assert told in " ".join(out.split())

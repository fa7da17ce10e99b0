"""Of this engine's own configurations the checker says what `engine serve` would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.core.config import UNSUPPORTED, preset_names
from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.inputs.read import read_path
from camshaft.diagnostics.compat.run import check_all
from camshaft.diagnostics.cost.devices import find_device

PRESETS = Path(__file__).parents[4] / "presets" / "serving"


def judged(folder: Path, text: str, gpu: str | None = None) -> Result:
    file = folder / "serve.yaml"
    file.write_text(text)
    return verdict(file, gpu)


def verdict(file: Path, gpu: str | None) -> Result:
    device = find_device(gpu) if gpu else None
    (result,) = check_all(read_path(file, "camshaft"), engine="camshaft", device=device)
    return result


@pytest.mark.parametrize(
    ("text", "gpu", "code", "severity", "line", "says"),
    [
        ("model: x\nenable_lora: true\n", None, "CF-01", "error", 2, "adapters are not served"),
        ("model: x\ntensor_parallel_size: 2\n", None, "CF-01", "warning", 2, "engine simulate"),
        ("model: x\nmax_num_batched_tokens: 8\nmax_num_seqs: 9\n", None, "CF-02", "error", 3, "max_num_seqs 9 is more"),
        ("model: x\nmax_num_seqs: 9\npolicy: naive\n", None, "CF-02", "error", 2, "contradicts policy naive"),
        ("model: x\nmax_num_seqs: $N\nenable_lora: true\n", None, "CF-01", "error", 3, "adapters are not served"),
        ("preset: no-such\n", None, "CF-02", "error", 1, "no such file or preset"),
        ("model: llama-3.1-8b\ndevice: cuda\n", "T4", "CF-03", "error", 1, "smaller weights"),
        ("model: llama-3.1-8b\nmax_model_len: 999999\n", None, None, None, 0, ""),
        ("model: llama-3.1-8b\nmax_model_len: 999999\n", "H100", "CF-02", "error", 2, "999999 is more than the 131072"),
    ],
)  # fmt: skip
def test_what_serving_refuses_is_found_where_it_stands(
    tmp_path: Path, text: str, gpu: str | None, code: str | None, severity: str | None, line: int, says: str
) -> None:
    result = judged(tmp_path, text, gpu)
    assert [finding.code for finding in result.findings] == ([code] if code else [])
    assert result.starts is (code is None)
    for finding in result.findings:
        assert finding.severity == severity
        assert finding.place.line == line
        assert says in finding.message


def test_every_knob_that_serving_refuses_has_a_finding(tmp_path: Path) -> None:
    texts = {
        "speculative_config": "{method: ngram, num_speculative_tokens: 3}", "distributed_executor_backend": "ray",
        "load_format": "dummy", "hf_overrides": "{a: 1}", "revision": "main", "download_dir": "x", "hf_config_path": "x",
        "kv_cache_dtype": "turboquant_k8v4",
    }  # fmt: skip
    for name in {knob.name for knob in UNSUPPORTED}:
        value = texts.get(name, "2" if name.endswith("size") else "true")
        result = judged(tmp_path, f"model: x\n{name}: {value}\n")
        assert result.starts is False, name
        assert any(
            name in finding.message or name.replace("_", "-") in str(finding.flags)
            for finding in result.findings
        )


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_is_an_error_on_the_gpu_it_names(name: str) -> None:
    gpu = {"h100": "H100", "h200": "H200", "a100": "A100 80GB"}.get(name.split("-")[0])
    result = verdict(PRESETS / f"{name}.yaml", gpu)
    parallel = "-tp" in name
    assert [finding.code for finding in result.findings] == (["CF-01"] if parallel else [])
    assert all(finding.severity == "warning" for finding in result.findings)


def test_a_file_on_top_of_a_preset_is_judged_with_it(tmp_path: Path) -> None:
    assert judged(tmp_path, "preset: h100-8b\nmax_num_seqs: 64\n", "H100").starts
    found = judged(tmp_path, "preset: h100-8b\nmax_num_seqs: 4096\n", "H100").findings
    assert [finding.code for finding in found] == ["CF-02"]
    assert found[0].place.line == 2


def test_memory_of_an_unknown_model_is_not_looked_at(tmp_path: Path) -> None:
    result = judged(tmp_path, "model: nobody/has-this-model\npolicy: naive\n", "H100")
    (finding,) = result.findings
    assert (finding.code, finding.severity, result.starts) == ("IN-02", "info", True)
    assert "nobody/has-this-model has no sheet" in finding.message

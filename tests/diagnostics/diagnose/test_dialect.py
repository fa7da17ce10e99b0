"""SGLang's options are read in its names, reasoned about in vLLM's, and told in its names again."""

from __future__ import annotations

from camshaft.diagnostics.diagnose import diagnose, read_subject
from camshaft.diagnostics.diagnose.dialect import from_sglang, read_sglang_command
from camshaft.diagnostics.evidence import Evidence, read_log_lines
from camshaft.diagnostics.report import text


def test_a_command_becomes_knobs() -> None:
    command = (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --max-running-requests=64 "
        "--chunked-prefill-size 4096 --mem-fraction-static 0.85 --disable-radix-cache --disable-cuda-graph"
    )
    assert from_sglang(read_sglang_command(command)) == {
        "model": "Qwen/Qwen3-8B",
        "tensor_parallel_size": 2,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.85,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }


def test_a_chunk_of_minus_one_is_no_chunking() -> None:
    assert from_sglang({"chunked_prefill_size": -1}) == {"enable_chunked_prefill": False}


def test_a_report_speaks_only_the_servers_language() -> None:
    line = "Decode batch, #running-req: 8, token usage: 0.1, cuda graph: True, gen throughput (token/s): 300, #queue-req: 40"
    evidence = read_log_lines([line] * 3, "log")
    subject = read_subject("python -m sglang.launch_server --max-running-requests 8", evidence)
    shown = text.render(diagnose(subject, evidence))
    assert shown.startswith("raise max_running_requests from 8 to 48")
    assert "max_num_seqs" not in shown
    assert "--max-num-batched-tokens" not in shown


def test_a_vllm_configuration_keeps_its_names() -> None:
    assert not read_subject("vllm serve Qwen/Qwen3-8B --max-num-seqs 8", Evidence()).sglang

"""Effective defaults: the published table of section values, by release, device and usage."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.diagnostics.compat.releases.versions import parse, versions
from camshaft.diagnostics.compat.rules.resolvers import Usage, effective_defaults
from camshaft.diagnostics.cost.devices import find_device

DECODER = {"max_position_embeddings": 32768, "is_encoder_decoder": False, "is_pooling": False, "is_hybrid": False,
           "is_attention_free": False, "is_multimodal": False, "has_sliding_window": False}  # fmt: skip


def effective(
    release: str,
    name: str,
    device: str | None = "H100",
    usage: Usage = "api_server",
    *,
    model: dict[str, Any] = DECODER,
    given: dict[str, Any] | None = None,
    **flags: Any,
) -> Any:
    found = effective_defaults(
        "vllm", parse(release), flags | (given or {}), model, find_device(device) if device else None, usage
    )[name]
    return found.depends_on or found.value


# (release, device, usage): token budget and sequences, as engine/arg_utils.py computes them.
@pytest.mark.parametrize(
    ("release", "device", "usage", "tokens", "sequences"),
    [
        ("0.8.0", "H100", "api_server", 8192, 1024),
        ("0.8.0", "A100", "api_server", 2048, 1024),
        ("0.8.5", "A100", "api_server", 8192, 1024),
        ("0.10.0", "H100", "api_server", 8192, 1024),
        ("0.10.0", "A100", "api_server", 2048, 256),
        ("0.10.0", "L4", "llm", 8192, 256),
        ("0.18.0", "H100", "api_server", 8192, 1024),
        ("0.18.0", "H200", "llm", 16384, 1024),
        ("0.18.0", "A100", "api_server", 2048, 256),
        ("0.18.0", "B200", "api_server", 8192, 1024),
        ("0.18.0", "MI300X", "api_server", 8192, 1024),
        ("0.27.0", "B200", "api_server", 8192, 1024),
        ("0.28.0", "B200", "api_server", 16384, 1024),
        ("0.33.0", "B200", "llm", 16384, 1024),
        ("0.33.0", "H100", "api_server", 8192, 1024),
        ("0.32.0", "GB10", "api_server", 8192, 1024),
        ("0.33.0", "GB10", "api_server", 2048, 256),
        ("0.33.0", "CPU", "api_server", 2048, 128),
        ("0.33.0", "TPU v6e", "api_server", 1024, 256),
    ],
)
def test_batch_defaults(release: str, device: str, usage: Usage, tokens: int, sequences: int) -> None:
    assert effective(release, "max_num_batched_tokens", device, usage) == tokens
    assert effective(release, "max_num_seqs", device, usage) == sequences


def test_batch_defaults_follow_the_flags() -> None:
    assert effective("0.18.0", "max_num_batched_tokens", enable_chunked_prefill=False) == 32768
    assert effective("0.18.0", "max_num_batched_tokens", max_num_seqs=1, max_model_len=512) == 512
    assert effective("0.18.0", "max_num_seqs", max_num_batched_tokens=100) == 100
    assert effective("0.18.0", "max_num_batched_tokens", performance_mode="throughput") == 16384
    assert effective("0.33.0", "max_num_batched_tokens", "CPU", tensor_parallel_size=4) == 8192
    moe = {"enable_expert_parallel": True, "data_parallel_size": 8, "all2all_backend": "deepep_low_latency"}
    assert effective("0.33.0", "max_num_batched_tokens", given=moe) == 256
    assert effective("0.6.0", "max_num_batched_tokens", max_model_len=4096) == 4096
    assert effective("0.6.0", "max_num_batched_tokens", enable_chunked_prefill=True) == 512
    assert effective("0.6.6", "max_num_batched_tokens", enable_chunked_prefill=True) == 2048


@pytest.mark.parametrize(
    ("release", "name", "model", "expected"),
    [
        ("0.6.6", "enable_chunked_prefill", {}, False),
        ("0.6.6", "enable_chunked_prefill", {"max_position_embeddings": 131072}, True),
        ("0.8.0", "enable_chunked_prefill", {}, True),
        ("0.18.0", "enable_chunked_prefill", {}, True),
        ("0.18.0", "enable_chunked_prefill", {"is_encoder_decoder": True}, False),
        ("0.7.3", "enable_prefix_caching", {}, False),
        ("0.10.0", "enable_prefix_caching", {}, True),
        ("0.27.1", "enable_prefix_caching", {"is_hybrid": True}, False),
        ("0.28.0", "enable_prefix_caching", {"is_hybrid": True}, True),
    ],
)
def test_features_follow_the_model(release: str, name: str, model: dict[str, Any], expected: bool) -> None:
    assert effective(release, name, model=DECODER | model) is expected


@pytest.mark.parametrize(
    ("release", "method", "expected"),
    [
        ("0.13.0", None, False),
        ("0.14.0", None, True),
        ("0.14.0", "eagle", True),
        ("0.18.0", "ngram", False),
        ("0.18.0", "ngram_gpu", True),
        ("0.18.0", "draft_model", False),
        ("0.28.0", "draft_model", True),
        ("0.33.0", "ngram", True),
        ("0.33.0", "suffix", False),
    ],
)
def test_async_scheduling_by_release_and_method(release: str, method: str | None, expected: bool) -> None:
    config = {"method": method, "model": "org/draft", "num_speculative_tokens": 2}
    given = {"speculative_config": config} if method else {}
    assert effective(release, "async_scheduling", given=given) is expected


def test_literal_defaults_are_the_tables() -> None:
    assert effective("0.19.1", "gpu_memory_utilization") == 0.9
    assert effective("0.20.0", "gpu_memory_utilization") == 0.92
    assert effective("0.18.0", "tensor_parallel_size", tensor_parallel_size=4) == 4


def test_what_depends_on_an_unknown_fact_says_so() -> None:
    assert effective("0.18.0", "max_num_batched_tokens", None) == ("device",)
    needed = ("model.derived_max_model_len", "model.has_sliding_window")
    assert effective("0.6.0", "enable_chunked_prefill", model={}) == needed


def test_a_model_nobody_described_is_a_plain_decoder() -> None:
    assert effective("0.18.0", "enable_chunked_prefill", model={}) is True
    assert effective("0.18.0", "max_num_batched_tokens", model={}) == 8192
    assert effective("0.18.0", "max_num_seqs", "A100", model={}) == 256


@pytest.mark.parametrize("release", [str(version) for version in versions("vllm")])
def test_every_release_is_covered(release: str) -> None:
    for name in ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "enable_prefix_caching"):
        assert effective(release, name) is not None, name


def test_latent_attention_has_larger_blocks() -> None:
    mla = DECODER | {"use_mla": True}
    assert effective("0.18.0", "block_size") == 16
    assert effective("0.18.0", "block_size", model=mla) == 64
    assert effective("0.18.0", "block_size", "B200", model=mla) == 128
    assert effective("0.9.2", "block_size", "B200", model=mla) == 16
    assert effective("0.18.0", "block_size", "CPU") == 128


def test_graph_sizes_follow_speculation_and_device() -> None:
    spec = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert effective("0.18.0", "max_cudagraph_capture_size", max_num_seqs=16) == 32
    assert effective("0.18.0", "max_cudagraph_capture_size", given=spec, max_num_seqs=16) == 128
    assert effective("0.28.0", "max_cudagraph_capture_size", "B200") == 1024
    assert effective("0.28.0", "max_cudagraph_capture_size", enforce_eager=True) == 0


def test_evidence_is_the_release_asked_for() -> None:
    found = effective_defaults("vllm", parse("0.28.0"), {}, {}, find_device("B200"))["max_num_batched_tokens"]
    assert found.evidence == "vllm/engine/arg_utils.py:2831"

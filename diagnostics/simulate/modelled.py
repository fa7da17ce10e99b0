"""Which settings a prediction reads, and which it leaves out: what is left out is said, never passed over."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..compat.releases.table import option_of

MODELLED = frozenset(
    [
        "api_server_count",
        "async_scheduling",
        "block_size",
        "compilation_config",
        "cpu_offload_gb",
        "cuda_graph_sizes",
        "cudagraph_capture_sizes",
        "data_parallel_size",
        "device",
        "dtype",
        "enable_chunked_prefill",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enforce_eager",
        "generation_config",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "long_prefill_token_threshold",
        "max_cudagraph_capture_size",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_queued_requests",
        "max_wait_s",
        "model",
        "num_gpu_blocks_override",
        "pipeline_parallel_size",
        "policy",
        "quantization",
        "scheduler_reserve_full_isl",
        "scheduling_policy",
        "speculative_config",
        "stream_interval",
        "tensor_parallel_size",
    ]
)

# Addresses, names, formats of requests and answers, logs, and how weights are fetched: no step is slower for them.
_WITHOUT_EFFECT = re.compile(
    r"host|port|uds|root_path|api_key|hf_token|headless|grpc|middleware|seed|revision|code_revision|tokenizer\w*|"
    r"served_model_name|response_role|chat_template\w*|default_chat_template_kwargs|trust_\w+|ssl_\w+|allow_\w+|"
    r"allowed_\w+|\w*log|\w*_logs?_\w+|log_\w+|\w*_log_\w+|disable_log_\w+|enable_log_\w+|aggregate_engine_logging|"
    r"\w*reasoning\w*|\w*tool\w*|download_dir|load_format|config_format|hf_config_path|ignore_patterns|"
    r"safetensors_\w+|model_loader_extra_config|record|drain_timeout_s|shutdown_timeout|request_timeout_s|"
    r"max_body_bytes|max_logprobs|logprobs_mode|override_generation_config|enable_debug|disable_fastapi_docs|"
    r"disable_uvicorn_access_log|enable_request_id_headers|enable_server_load_tracking|enable_prompt_tokens_details|"
    r"enable_force_include_usage|show_hidden_metrics_for_version|otlp_traces_endpoint|collect_detailed_traces|"
    r"distributed_executor_backend|task|runner|h11_\w+|use_tqdm_on_load|log_stats_interval_s|max_log_len|"
    r"data_parallel_(address|rpc_port|backend)|worker_use_ray|engine_use_ray|fail_on_environ_validation"
)


def unmodelled(given: Iterable[str]) -> tuple[str, ...]:
    """A line that names the settings given that may change speed or memory and that no prediction reads; or none."""
    left = sorted(name for name in given if name not in MODELLED and not _WITHOUT_EFFECT.fullmatch(name))
    if not left:
        return ()
    spelled = ", ".join(option_of(name) for name in left)
    return (
        f"not modelled: {spelled}; the prediction is as if {'it' if len(left) == 1 else 'they'} were not given",
    )

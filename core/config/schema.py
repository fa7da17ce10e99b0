"""The one flat configuration of a server: vLLM's names where vLLM has the knob.

`None` means "not told": `resolve` fills it from the policy, the model or the hardware it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from .values import countable, human_bytes, human_int, human_int_or_auto, json_mapping, names, not_bool

Int = Annotated[int, BeforeValidator(not_bool), AfterValidator(countable)]
Real = Annotated[float, BeforeValidator(not_bool), Field(allow_inf_nan=False)]
HumanInt = Annotated[
    int,
    BeforeValidator(human_int),
    AfterValidator(countable),
    WithJsonSchema(
        {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d+(\.\d+)?[kKmMgGtT]?$"}]}
    ),
]
Bytes = Annotated[
    int,
    BeforeValidator(human_bytes),
    AfterValidator(countable),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer"},
                {"type": "string", "pattern": r"^\d+(\.\d+)?([kKmMgGtT]?| *[kKMGT]i?B)$"},
            ]
        }
    ),
]
ModelLength = Annotated[
    int,
    BeforeValidator(human_int_or_auto),
    AfterValidator(countable),
    WithJsonSchema(
        {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^(auto|\d+(\.\d+)?[kKmMgGtT]?)$"}]}
    ),
]
JsonMapping = Annotated[
    Mapping[str, Any],
    BeforeValidator(json_mapping),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string", "pattern": r"^\s*\{"}]}),
]
# vLLM knows more values of these from release to release: simulate and diagnose read any, `serve` these.
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3")
EXECUTOR_BACKENDS = ("uni", "mp")
LoadFormat = Annotated[str, WithJsonSchema({"enum": list(LOAD_FORMATS)})]
KvCacheDtype = Annotated[str, WithJsonSchema({"enum": list(KV_CACHE_DTYPES)})]
ExecutorBackend = Annotated[str, WithJsonSchema({"enum": list(EXECUTOR_BACKENDS)})]
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(names),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
]


def _knob(group: str, text: str, default: Any = None, **bounds: Any) -> Any:
    return Field(default, description=text, json_schema_extra={"group": group}, **bounds)


class ServeConfig(BaseModel):
    """Every knob of the engine and its server, as given. Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # model
    model: str = _knob("model", "Folder, hub id, GGUF file or demo model name.", "")
    tokenizer: str | None = _knob("model", "Folder or hub id of the tokenizer; default: the model's own.")
    revision: str | None = _knob("model", "Branch, tag or commit of the model on the hub.")
    download_dir: str | None = _knob("model", "Where hub downloads are kept.")
    load_format: LoadFormat = _knob("model", "How weights are stored; dummy draws random ones.", "auto")
    quantization: str | None = _knob("model", "Weight quantisation; default: what the checkpoint says.")
    dtype: Literal["auto", "float32", "float", "bfloat16", "float16", "half"] = _knob(
        "model", "Type of weights and activations; auto: the checkpoint's on a GPU, float32 on a CPU.", "auto"
    )
    max_model_len: ModelLength | None = _knob(
        "model", "Longest sequence, prompt and output, in tokens; auto: what fits.", None, ge=-1
    )
    seed: Int | None = _knob("model", "Seed of sampling where a request names none.", 0, ge=0)
    generation_config: str = _knob(
        "model", "Default sampling: auto reads the model's own, vllm ignores it.", "auto"
    )
    override_generation_config: JsonMapping = _knob(
        "model", "Default sampling values that win over the model's own; max_new_tokens is a limit, too.", {}
    )
    hf_overrides: JsonMapping = _knob("model", "Values that replace those of the model's config.json.", {})
    hf_config_path: str | None = _knob("model", "Folder or hub id of a config.json other than the model's.")
    trust_remote_code: bool = _knob("model", "Run code that comes with a model.", False)
    max_logprobs: Int = _knob("model", "Most alternatives a request may ask for per token.", 20, ge=0)

    # device and cache
    device: Literal["auto", "cpu", "cuda"] = _knob("device", "Where the model runs.", "auto")
    enforce_eager: bool = _knob("device", "Never capture CUDA graphs.", False)
    cudagraph_capture_sizes: tuple[Int, ...] | None = _knob("device", "Batch sizes to capture graphs for.")
    max_cudagraph_capture_size: Int | None = _knob("device", "Largest batch captured as a graph.", None, ge=0)
    gpu_memory_utilization: Real = _knob(
        "cache", "Share of a GPU's memory the engine may use for everything.", 0.92, gt=0, le=1
    )
    kv_cache_memory_bytes: Bytes | None = _knob(
        "cache", "Memory of the KV cache (2GiB); given, gpu_memory_utilization does not count.", None, gt=0
    )
    num_gpu_blocks_override: Int | None = _knob("cache", "Number of KV blocks, whatever fits.", None, gt=0)
    block_size: Int | None = _knob("cache", "Tokens in a KV block.", None, ge=1, le=4096)
    enable_prefix_caching: bool | None = _knob("cache", "Reuse the KV blocks of equal prefixes.")
    kv_cache_dtype: KvCacheDtype = _knob("cache", "Type of the KV cache; auto: the model's.", "auto")

    # scheduling
    policy: str | JsonMapping = _knob(
        "scheduling", "Name or file of a scheduling policy, or one inline.", "continuous-chunked"
    )
    scheduling_policy: Literal["fcfs", "priority"] | None = _knob(
        "scheduling", "vLLM's name for the order of requests; wins over the policy's."
    )
    max_num_seqs: Int | None = _knob("scheduling", "Most sequences that run at once.", None, ge=1)
    max_num_batched_tokens: HumanInt | None = _knob("scheduling", "Most tokens in one step.", None, ge=1)
    enable_chunked_prefill: bool | None = _knob("scheduling", "Cut prompts into chunks that share steps.")
    long_prefill_token_threshold: Int | None = _knob(
        "scheduling", "Most tokens of one prompt in a step; 0 is no limit.", None, ge=0
    )
    max_wait_s: Real | None = _knob(
        "scheduling", "A request that waited longer goes first, whatever the policy says.", None, gt=0
    )
    async_scheduling: bool | None = _knob("scheduling", "Plan the next step while the last one runs.")
    scheduler_reserve_full_isl: bool | None = _knob(
        "scheduling", "Admit a prompt only when all of it fits the cache."
    )

    # parallel, speculation, adapters: known, and refused by `serve`
    tensor_parallel_size: Int = _knob("parallel", "GPUs that share each layer.", 1, ge=1)
    pipeline_parallel_size: Int = _knob("parallel", "GPUs that share the layers.", 1, ge=1)
    data_parallel_size: Int = _knob("parallel", "Copies of the engine behind one address.", 1, ge=1)
    enable_expert_parallel: bool = _knob("parallel", "Experts spread over GPUs.", False)
    distributed_executor_backend: ExecutorBackend | None = _knob(
        "parallel", "How worker processes are started."
    )
    speculative_config: JsonMapping | None = _knob("speculation", "Speculative decoding.")
    enable_lora: bool = _knob("adapters", "Serve LoRA adapters.", False)

    # HTTP server
    host: str = _knob("server", "Address to listen on.", "127.0.0.1")
    port: Int = _knob("server", "Port to listen on; 0 is any free one.", 8000, ge=0, le=65535)
    uds: str | None = _knob("server", "Unix socket to listen on instead of host and port.")
    served_model_name: Names | None = _knob("server", "Names clients use; default: `model` as written.")
    api_key: Names | None = _knob("server", "Keys of which clients must send one.", repr=False)
    root_path: str | None = _knob("server", "Path prefix behind a proxy.")
    ssl_keyfile: str | None = _knob("server", "Key file for HTTPS.")
    ssl_certfile: str | None = _knob("server", "Certificate file for HTTPS.")
    allowed_origins: Annotated[tuple[str, ...], BeforeValidator(names)] = _knob(
        "server", "Origins browsers may call from; none is CORS off.", ()
    )
    allowed_methods: Annotated[tuple[str, ...], BeforeValidator(names)] = _knob(
        "server", "Methods CORS allows.", ("*",)
    )
    allowed_headers: Annotated[tuple[str, ...], BeforeValidator(names)] = _knob(
        "server", "Headers CORS allows.", ("*",)
    )
    allow_credentials: bool = _knob("server", "Whether CORS allows credentials.", False)
    chat_template: str | None = _knob("server", "Jinja file or template that replaces the tokenizer's.")
    response_role: str = _knob("server", "Role of chat answers.", "assistant")
    trust_request_chat_template: bool = _knob("server", "Let a request bring its own chat template.", False)
    max_queued_requests: Int = _knob(
        "server", "Requests taken in beyond max_num_seqs; beyond them: 503.", 1024, ge=1
    )
    max_body_bytes: Bytes = _knob("server", "Largest request body; beyond it: 413.", 32 << 20, ge=1024)
    request_timeout_s: Real | None = _knob(
        "server", "A request that takes longer is aborted; 0 is off.", 600, ge=0
    )
    stream_interval: Int = _knob("server", "Tokens between two streamed chunks.", 1, ge=1)
    drain_timeout_s: Real = _knob("server", "How long SIGTERM lets running requests finish.", 30, ge=0)
    disable_fastapi_docs: bool = _knob("server", "No /docs and /openapi.json.", False)
    enable_debug: bool = _knob("server", "Serve /debug, which `engine explain` reads.", True)

    # logs and records
    log_level: Literal["debug", "info", "warning", "error"] = _knob("logs", "Least level logged.", "info")
    log_format: Literal["console", "json"] = _knob("logs", "Form of the log.", "console")
    log_stats_interval_s: Real = _knob("logs", "Seconds between lines of statistics; 0 is off.", 10, ge=0)
    disable_log_stats: bool = _knob("logs", "No lines of statistics.", False)
    disable_uvicorn_access_log: bool = _knob("logs", "No line per HTTP request.", False)
    enable_log_requests: bool = _knob("logs", "Log each request's parameters, never its content.", False)
    record: str | None = _knob(
        "logs",
        "File that receives arrivals, lengths, prefix hashes and plans; one that is there becomes FILE.1.",
    )


SWITCHES = frozenset(
    name for name, field in ServeConfig.model_fields.items() if field.annotation in (bool, bool | None)
)

# vLLM's older names for the negative of a switch, which its releases take again.
NEGATIVES = {"disable_log_requests": "enable_log_requests"}


def group_of(name: str) -> str:
    """The section a field is shown under."""
    extra = ServeConfig.model_fields[name].json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else ""


_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the file, with both spellings of each key."""
    schema: dict[str, Any] = _with_bounds(ServeConfig.model_json_schema())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Camshaft configuration"
    properties: dict[str, Any] = schema["properties"]
    properties["preset"] = {
        "type": "string",
        "description": "Name or file of a preset whose values this file starts from.",
        "group": "model",
    }
    for name in [name for name in properties if "_" in name]:
        properties[name.replace("_", "-")] = properties[name]
    off = "|".join(name.replace("_", "[-_]") for name in [f"no_({'|'.join(sorted(SWITCHES))})", *NEGATIVES])
    schema["patternProperties"] = {f"^({off})$": {"type": "boolean"}}
    return schema


def _with_bounds(node: Any) -> Any:
    """pydantic leaves `ge` and its like as they are beside a validator; JSON Schema has other words."""
    if isinstance(node, dict):
        return {_BOUNDS.get(key, key): _with_bounds(value) for key, value in node.items()}
    return [_with_bounds(item) for item in node] if isinstance(node, list) else node

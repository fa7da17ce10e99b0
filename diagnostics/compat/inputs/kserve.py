"""KServe's huggingfaceserver: it takes vLLM's options beside its own, and passes over what it does not know.

Its parser is vLLM's with its own options added, read with `parse_known_args` (kserve/kserve,
python/huggingfaceserver/huggingfaceserver/__main__.py and python/kserve/kserve/model_server.py).
"""

from __future__ import annotations

from .base import Configuration, Word

SWITCHES = frozenset(
    {"disable_lower_case", "disable_special_tokens", "return_token_type_ids", "return_probabilities"}
)
# Its own options with a value; where vLLM has one of the same name, the front end's meaning holds.
VALUES = frozenset((
    "access_log_format", "backend", "configure_logging", "enable_docs_url", "enable_grpc", "enable_latency_logging",
    "grpc_port", "http_port", "log_config_file", "max_asyncio_workers", "max_length", "max_threads", "model_dir",
    "model_id", "model_name", "model_revision", "predictor_host", "predictor_protocol",
    "predictor_request_timeout_seconds", "predictor_use_ssl", "protocol", "task", "tensor_input_names", "workers",
))  # fmt: skip


def is_huggingfaceserver(*names: str | None) -> bool:
    """Whether an image, a runtime or a model format is KServe's server for Hugging Face models."""
    return any(
        name is not None and (name == "huggingface" or "huggingfaceserver" in name.lower()) for name in names
    )


def adopt(configuration: Configuration) -> None:
    """Leave the engine's options only, and remember that unknown ones do not stop the server."""
    configuration.words = _engine_words(configuration.words)
    configuration.lenient = True


def _engine_words(words: list[Word]) -> list[Word]:
    kept: list[Word] = []
    index = 0
    while index < len(words):
        name, equals, _ = words[index].text.partition("=")
        own = name.removeprefix("--").replace("-", "_") if name.startswith("--") else ""
        if own in VALUES:
            index += 1 if equals else 2
        elif own in SWITCHES:
            index += 1
        else:
            kept.append(words[index])
            index += 1
    return kept

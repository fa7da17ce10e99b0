"""Files that a configuration names, read and judged before anything is loaded."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import ServeConfig
from ..errors import ConfigError, ModelError
from ..json_files import read_json
from .api.params import DEFAULT_KEYS, SamplingDefaults, is_usable, max_new_tokens


def check_certificate(config: ServeConfig) -> None:
    """Raises ConfigError if `ssl_certfile` and `ssl_keyfile` give no certificate to serve HTTPS with."""
    if config.ssl_certfile is None and config.ssl_keyfile is None:
        return
    if config.ssl_certfile is None:
        raise ConfigError("ssl_keyfile needs ssl_certfile", "ssl_keyfile")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")  # never asks a terminal
    except OSError as error:  # also what OpenSSL refuses
        files = " and ".join(filter(None, (config.ssl_certfile, config.ssl_keyfile)))
        why = f"ssl_certfile {files}: not usable for HTTPS: {error.strerror or error}"
        raise ConfigError(why, "ssl_certfile") from error


def check_recording(config: ServeConfig) -> None:
    """Raises ConfigError if `record` names a file that cannot be written."""
    if config.record is None:
        return
    file = Path(config.record)
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        why = f"record {config.record}: cannot be written; name a file in a folder that can"
        raise ConfigError(why, "record")


def read_chat_template(given: str | None) -> str | None:
    """The template named or written in `chat_template`. Raises ConfigError."""
    if given is None:
        return None
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = f"chat_template {given!r}: neither a readable file nor a template: {error}"
        raise ConfigError(why, "chat_template") from error


def sampling_defaults(config: ServeConfig, folder: Path | None) -> SamplingDefaults:
    """Defaults from the model's generation_config.json (`auto`), another folder's, or none (`vllm`).

    A length that the operator sets, not the model, is a limit, too, as in vLLM.
    Raises ConfigError for a value of override_generation_config that no request could ask for.
    """
    for name, value in config.override_generation_config.items():
        if value is not None and name in DEFAULT_KEYS and not is_usable(name, value):
            why = f"override_generation_config: {name}: {value!r} is no value that a request may have"
            raise ConfigError(why, "override_generation_config")
    found: Mapping[str, Any] = {}
    if config.generation_config != "vllm":
        where = folder if config.generation_config == "auto" else Path(config.generation_config)
        found = _read_generation_config(where, required=config.generation_config != "auto")
    merged = {**found, **config.override_generation_config}
    models_own = config.generation_config in ("auto", "vllm")
    return SamplingDefaults.from_generation_config(
        merged,
        most_tokens=max_new_tokens(config.override_generation_config if models_own else merged),
        max_logprobs=config.max_logprobs,
        stream_interval=config.stream_interval,
    )


def _read_generation_config(folder: Path | None, required: bool) -> Mapping[str, Any]:
    file = None if folder is None else folder / "generation_config.json"
    if file is None or not (required or file.is_file()):
        return {}
    try:
        return read_json(file, strict=False)
    except ModelError as error:
        raise ConfigError(str(error), "generation_config") from error

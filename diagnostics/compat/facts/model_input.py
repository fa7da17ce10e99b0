"""Facts of a model as people hand them in: a config.json, a sheet, or a few words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ....core.errors import ConfigError

# What people write for a config.json's keys.
ALIASES = {
    "num_kv_heads": "num_key_value_heads",
    "n_kv_heads": "num_key_value_heads",
    "kv_heads": "num_key_value_heads",
    "num_heads": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "heads": "num_attention_heads",
    "attention_heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "experts": "num_experts",
    "context_length": "max_position_embeddings",
    "max_position": "max_position_embeddings",
    "quant_method": "quantization",
    "torch_dtype": "dtype",
}


def known_facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The facts under the keys of a config.json.

    Grouped-query head counts tell a model without latent attention, since latent attention has no KV heads to count.
    """
    facts = {key: value for key, value in raw.items() if key not in ALIASES}
    for key, value in raw.items():
        if key in ALIASES:
            facts.setdefault(ALIASES[key], value)
    kv_heads, heads = facts.get("num_key_value_heads"), facts.get("num_attention_heads")
    grouped = isinstance(kv_heads, int) and (not isinstance(heads, int) or kv_heads < heads)
    if grouped and "kv_lora_rank" not in facts and "text_config" not in facts:
        facts.setdefault("use_mla", False)
    return facts


def read_model(text: str) -> dict[str, Any]:
    """Facts of a model: a config.json or a sheet (a file, its folder or its name), or `key=value,key=value`.

    Raises ConfigError when it is neither.
    """
    path = Path(text)
    try:
        path = path / "config.json" if path.is_dir() else path
        found = path.is_file()
    except (OSError, ValueError):
        found = False
    if found:
        return _model_file(path)
    if "=" not in text:
        from .sheets import sheet_facts

        known = sheet_facts(text)
        if known:
            return known
        raise ConfigError(
            f"--model {text}: no such file and no sheet of that name; give a config.json, a model sheet, or facts "
            "such as quantization=awq,max_position_embeddings=131072"
        )
    facts: dict[str, Any] = {}
    for part in re.split(r",(?=\s*[A-Za-z_]\w*=)", text):
        name, _, value = part.strip().partition("=")
        facts[name.strip()] = _fact(value.strip())
    return facts


def _model_file(path: Path) -> dict[str, Any]:
    from ....core.places import load_yaml

    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the model's facts in {path}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no facts of a model: expected a mapping")
    if isinstance(data.get("config"), dict) and "num_hidden_layers" not in data:
        from .sheets import file_facts

        return file_facts(data["config"])
    return {str(key): value for key, value in data.items()}


def _fact(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text

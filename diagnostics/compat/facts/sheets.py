"""What the name of a model tells of it, by the sheets of `core.arithmetic.model_sheets`.

A name that is a sheet's own (`Qwen/Qwen3-8B`, `Qwen/Qwen3-8B-FP8`) has all of its facts. One that only looks like it,
such as a finetune, has the sizes, and not what relatives differ in: context length, modalities, type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....core.arithmetic.model_sheets import read_sheet, sheet_of, sheet_shape

if TYPE_CHECKING:
    from ....core.arithmetic.shape import ModelShape

# The sheet's whole config, for arithmetic alone.
ARITHMETIC = "sheet_config"
# What relatives of a model share.
_SIZES = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "kv_lora_rank",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "intermediate_size",
    "quantization_config",
)
# Storage formats whose word in a name is what checkpoints call them, too; of others (int4, nvfp4) only the size is sure.
_METHODS = {"fp8", "awq", "gptq", "mxfp4"}
_FORMAT = re.compile(
    r"[-_](fp8|awq|gptq|int4|int8|w4a16|w8a8|w8a16|nvfp4|fp4|mxfp4)([-_](dynamic|block|int[48]))?$"
)
# Publishers whose "-FP8" checkpoints are scaled by blocks of 128 x 128 (`weight_block_size` of their config.json).
# GLM-4.5 to 4.7 are not among them: their FP8 checkpoints are compressed-tensors, scaled by channel.
_BLOCK_FP8 = ("qwen/", "deepseek-ai/", "zai-org/glm-5", "minimaxai/", "moonshotai/")
_BLOCK = [128, 128]


def sheet_facts(name: str) -> dict[str, Any]:
    """The facts of the model that a Hub name or a sheet's name stands for; none where no sheet answers to it."""
    shape = sheet_shape(name)
    path = sheet_of(name)
    if shape is None or path is None:
        return {}
    config = _stored(name, shape)
    sheet = read_sheet(path)
    own = {alias.lower() for alias in sheet.aliases if "/" in alias} | {path.stem.lower()}
    facts = _own_facts(config) if _FORMAT.sub("", name.lower()) in own else _sizes(config)
    if _FORMAT.search(name.lower()) and not name.lower().startswith(_BLOCK_FP8) and _method(facts) == "fp8":
        del facts["quantization_config"]  # compressed-tensors or modelopt, as others call it
        facts.pop("hidden_size", None)
    return {**facts, ARITHMETIC: config}


def _method(facts: Mapping[str, Any]) -> Any:
    stored = facts.get("quantization_config")
    return stored.get("quant_method") if isinstance(stored, Mapping) else None


def file_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a sheet's `config`, given as a file: the model's own."""
    return {**_own_facts(config), ARITHMETIC: dict(config)}


def with_sheet(facts: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """`facts` and, unless they are a whole config, those that the model's name tells beyond them."""
    if not isinstance(name, str) or ARITHMETIC in facts:
        return dict(facts)
    if "num_hidden_layers" in facts and "hidden_size" in facts:
        return dict(facts)
    known = sheet_facts(name)
    method = facts.get("quantization")
    if known and "quantization" in facts and not _same_bits(method, known):
        known.pop("quantization_config", None)
        config = {k: v for k, v in known[ARITHMETIC].items() if k != "quantization_config"}
        known[ARITHMETIC] = {**config, "quantization_config": {"quant_method": method}} if method else config
    return {**known, **facts}


def _same_bits(method: Any, known: Mapping[str, Any]) -> bool:
    """Whether a stated method leaves open how many bits a weight has, which the format in the name tells."""
    return method == "compressed-tensors" and bool(known[ARITHMETIC].get("quantization_config"))


def _stored(name: str, shape: ModelShape) -> dict[str, Any]:
    """The sheet's config as the named checkpoint has it: stored in blocks where its publisher does that."""
    config = dict(shape.raw)
    stored = config.get("quantization_config")
    if (
        isinstance(stored, Mapping)
        and stored.get("quant_method") == "fp8"
        and name.lower().startswith(_BLOCK_FP8)
    ):
        config["quantization_config"] = {"weight_block_size": _BLOCK, **stored}
    return config


def _own_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    facts = _nameable(config)
    architectures = facts.get("architectures") or [""]
    if not str(architectures[0]).endswith("ForCausalLM"):
        facts.pop("hidden_size", None)  # sheets describe the text part alone: an absent key means nothing
        facts["is_multimodal"] = True
    return facts


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in _nameable(config).items() if key in _SIZES}


def _nameable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without a storage format that checkpoints call otherwise, and the type such files differ in."""
    facts = dict(config)
    stored = facts.get("quantization_config")
    if isinstance(stored, Mapping):
        method = stored.get("quant_method")
        if method not in ("fp8", "mxfp4"):
            facts.pop("torch_dtype", None)
        if method not in _METHODS:
            del facts["quantization_config"]
            facts.pop("hidden_size", None)
    return facts

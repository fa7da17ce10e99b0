"""What an engine makes of the knobs before memory is budgeted: vLLM's defaults, captured batches, copies that share experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.arithmetic.quantization import DESCRIBED_BY_CHECKPOINT
from ...core.arithmetic.shape import ModelShape
from ...core.config import Effective, LoadedConfig, load_config
from ...core.errors import ConfigError
from ...core.releases import vllm_release
from ..cost.hardware import HardwareSheet
from .engines import NEWEST_VLLM, EngineKind, vllm_defaults


def with_vllm_defaults(
    loaded: LoadedConfig, engine: EngineKind, hardware: HardwareSheet, shape: ModelShape
) -> LoadedConfig:
    """The configuration with vLLM's own defaults written where it is silent."""
    entries = {**loaded.entries, **loaded.foreign}
    written = {name: entry.value for name, entry in entries.items()}
    given = {name: getattr(loaded.config, name) for name in loaded.entries}
    length = given.get("max_model_len") or shape.max_position_embeddings
    filled = vllm_defaults(engine, hardware, {**given, "max_model_len": length})
    return load_config({**filled, **written}, purpose="inspect")


def captured(
    values: Mapping[str, Effective], foreign: Mapping[str, Any], engine: EngineKind
) -> tuple[int, ...]:
    """The batches that are replayed from graphs, ascending; vLLM's nested spelling is read too."""
    given = {name: effective.value for name, effective in values.items()}
    if given["enforce_eager"] or given["device"] == "cpu":
        return ()
    compiled = foreign.get("compilation_config")
    nested = compiled if isinstance(compiled, Mapping) else {}
    sizes = given["cudagraph_capture_sizes"] or nested.get("cudagraph_capture_sizes")
    limit = given["max_cudagraph_capture_size"]
    limit = nested.get("max_cudagraph_capture_size") if limit is None else limit
    return engine.captures(given["max_num_seqs"], given["max_num_batched_tokens"], sizes, limit)


def attention_in_graphs(foreign: Mapping[str, Any], engine: EngineKind) -> bool:
    """Whether graphs of decodes hold attention too: not by default from vLLM's 0.8.0 to 0.10.2 (release notes of 0.11.0)."""
    compiled = foreign.get("compilation_config")
    nested = compiled if isinstance(compiled, Mapping) else {}
    mode = nested.get("cudagraph_mode")
    if mode is not None:
        return str(mode).upper() != "PIECEWISE"
    split = engine.name == "vllm" and (0, 8) <= engine.release < (0, 11)
    return not split or bool(nested.get("full_cuda_graph"))


def sharing_copies(
    values: Mapping[str, Effective], engine: EngineKind, shape: ModelShape, assumptions: list[str]
) -> int:
    """Data parallel copies that share one set of experts: all of vLLM's from 0.8.0 on, for a model that has experts."""
    copies = int(values["data_parallel_size"].value or 1)
    if copies == 1 or not shape.num_moe_layers or engine.name != "vllm" or engine.release < (0, 8):
        return 1
    assumptions.append(
        f"data parallel: {copies} copies share the experts, step together and carry the same load; "
        "tokens reach experts by all-gather and reduce-scatter; no measured row holds the time of such a step"
    )
    return copies


def say_assumed_scheme(method: str | None, shape: ModelShape, assumptions: list[str]) -> None:
    """A method that leaves bits and types to the checkpoint, for a model whose sheet has none."""
    if method in DESCRIBED_BY_CHECKPOINT and not shape.quantization:
        assumptions.append(
            f"quantization {method}: the model's sheet does not say which scheme its checkpoint has; "
            "FP8 weights and activations are assumed"
        )


def require_release(engine: EngineKind) -> None:
    """Raises ConfigError for a release of vLLM that is newer than any whose rules are known."""
    if engine.name == "vllm" and engine.release > vllm_release(NEWEST_VLLM)[:2]:
        raise ConfigError(f"vllm {engine.version} is not known; the newest release known is {NEWEST_VLLM}")

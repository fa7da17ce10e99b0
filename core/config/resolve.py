"""Every effective value and where it came from: given, preset, policy, derived or default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ConfigError
from ..shape import ModelShape
from .hardware import Hardware
from .schema import ServeConfig
from .sources import LoadedConfig

Origin = Literal["given", "preset", "policy", "derived", "default", "unknown"]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Effective:
    """One value in force. `value` is None with origin `unknown` where a fact it needs was not told."""

    value: Any
    origin: Origin
    why: str = ""  # the place it was written, the rule it was derived by, or the facts that are missing


@dataclass(frozen=True, slots=True)
class Resolved:
    """A frozen configuration with every effective value; `config` holds them all."""

    config: ServeConfig
    values: Mapping[str, Effective]
    hardware: Hardware | None = None
    shape: ModelShape | None = None

    def value(self, name: str) -> Any:
        """The effective value of a knob. Raises ConfigError where a fact it needs was not told."""
        effective = self.values[name]
        if effective.origin == "unknown":
            raise ConfigError(f"{name} cannot be settled: {effective.why}")
        return effective.value


def resolve(
    loaded: LoadedConfig,
    hardware: Hardware | None = None,
    shape: ModelShape | None = None,
    policy: Mapping[str, Any] | None = None,
) -> Resolved:
    """Settles every knob from what was written, the policy's own values, the model and the hardware told.

    `policy` maps knob names to the values that the policy file sets. What needs a fact that was not told
    stays None with origin `unknown`. Raises ConfigError where values contradict each other.
    """
    values = {name: _written(loaded, name) for name in ServeConfig.model_fields}
    for name, value in (policy or {}).items():
        if name in values and values[name].value is None:
            values[name] = Effective(value, "policy", f"policy {_policy_name(loaded.config)}")
    for name, rule in _RULES.items():
        if values[name].value in (None, "auto", -1):
            values[name] = rule(values, hardware, shape)
    _normalise(values)
    _refuse_contradictions(values)
    settled = {
        name: getattr(loaded.config, name) if effective.origin == "unknown" else effective.value
        for name, effective in values.items()
    }
    return Resolved(ServeConfig.model_validate(settled), values, hardware, shape)


def _policy_name(config: ServeConfig) -> str:
    return config.policy if isinstance(config.policy, str) else "inline"


def _written(loaded: LoadedConfig, name: str) -> Effective:
    value = getattr(loaded.config, name)
    if name in loaded.entries:
        entry = loaded.entries[name]
        return Effective(value, entry.origin, str(entry.place))
    return Effective(value, "default")


_Values = dict[str, Effective]


def _device(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    if hardware is None:
        return Effective(None, "unknown", "the hardware was not told")
    return Effective(hardware.kind, "derived", f"this is {hardware.describe()}")


def _dtype(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    device = values["device"].value
    if device == "cpu":
        return Effective("float32", "derived", "float32 is fastest on a CPU")
    if device is None or shape is None:
        return Effective("auto", "unknown", "needs the device and the model's config.json")
    if shape.dtype == "float32":
        return Effective("bfloat16", "derived", "a float32 checkpoint runs in bfloat16 on a GPU")
    return Effective(shape.dtype, "derived", "the checkpoint's type")


def _max_model_len(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    if values["max_model_len"].value == -1:
        return Effective(-1, "unknown", "auto: the longest that fits, known once memory is measured")
    if shape is None:
        return Effective(None, "unknown", "needs the model's config.json")
    return Effective(shape.max_position_embeddings, "derived", "the model's max_position_embeddings")


def _block_size(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    return Effective(16, "default", "16 tokens waste about 8 a sequence")


def _max_num_seqs(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    if values["device"].value == "cpu":
        return Effective(64, "derived", "a CPU gains little beyond 64 sequences")
    if hardware is None:
        return Effective(None, "unknown", "needs the hardware")
    return Effective(256, "derived", "256 on a GPU")


def _max_num_batched_tokens(
    values: _Values, hardware: Hardware | None, shape: ModelShape | None
) -> Effective:
    if values["enable_chunked_prefill"].value is False:
        length = values["max_model_len"].value
        if length is None or length < 0:
            return Effective(None, "unknown", "without chunked prefill it is max_model_len, which is unknown")
        return Effective(max(length, 2048), "derived", "without chunked prefill a whole prompt must fit")
    if values["device"].value == "cpu":
        return Effective(512, "derived", "512 on a CPU: a longer step stalls streams")
    if hardware is None:
        return Effective(None, "unknown", "needs the hardware")
    large = hardware.memory_bytes >= 70 * GIB
    return Effective(8192 if large else 2048, "derived", "8192 from 70 GiB of GPU memory, else 2048")


def _on(why: str) -> Any:
    def rule(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
        return Effective(True, "default", why)

    return rule


def _async_scheduling(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    device = values["device"].value
    if device is None:
        return Effective(None, "unknown", "needs the device")
    return Effective(device == "cuda", "derived", "on with a GPU, whose steps run beside the host's")


def _fixed(value: Any, why: str) -> Any:
    def rule(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
        return Effective(value, "default", why)

    return rule


def _kv_cache_dtype(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    dtype = values["dtype"]
    if dtype.origin == "unknown":
        return Effective("auto", "unknown", "the model's type, which is unknown")
    return Effective(_LONG.get(dtype.value, dtype.value), "derived", "the model's type")


def _tokenizer(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    return Effective(values["model"].value or None, "derived", "the model's own")


def _served_model_name(values: _Values, hardware: Hardware | None, shape: ModelShape | None) -> Effective:
    model = values["model"].value
    return Effective((model,) if model else None, "derived", "the model as written")


# In order: a rule may read what the ones before it settled.
_RULES: dict[str, Any] = {
    "device": _device,
    "dtype": _dtype,
    "tokenizer": _tokenizer,
    "served_model_name": _served_model_name,
    "max_model_len": _max_model_len,
    "block_size": _block_size,
    "enable_prefix_caching": _on("equal prefixes are computed once"),
    "enable_chunked_prefill": _on("prompts share steps with decodes"),
    "kv_cache_dtype": _kv_cache_dtype,
    "max_num_seqs": _max_num_seqs,
    "max_num_batched_tokens": _max_num_batched_tokens,
    "long_prefill_token_threshold": _fixed(0, "no limit"),
    "max_wait_s": _fixed(60.0, "nobody waits longer than a minute for their turn"),
    "async_scheduling": _async_scheduling,
    "scheduler_reserve_full_isl": _fixed(True, "a prompt that does not fit would evict others"),
}

_LONG = {"float": "float32", "half": "float16", "fp8_e4m3": "fp8"}


def _normalise(values: _Values) -> None:
    for name in ("dtype", "kv_cache_dtype"):
        effective = values[name]
        if effective.value in _LONG:
            values[name] = Effective(_LONG[effective.value], effective.origin, effective.why)
    batched, seqs = values["max_num_batched_tokens"], values["max_num_seqs"]
    if seqs.origin == "derived" and batched.value and seqs.value and seqs.value > batched.value:
        values["max_num_seqs"] = Effective(
            batched.value, "derived", "one token a sequence: max_num_batched_tokens"
        )


def _refuse_contradictions(values: _Values) -> None:
    def value(name: str) -> Any:
        return values[name].value

    seqs, batched, length = value("max_num_seqs"), value("max_num_batched_tokens"), value("max_model_len")
    if seqs and batched and seqs > batched:
        raise ConfigError(
            f"max_num_seqs {seqs} is more than max_num_batched_tokens {batched}: each running sequence needs a "
            f"token a step; lower the first or raise the second ({values['max_num_seqs'].why})"
        )
    if value("enable_chunked_prefill") is False and batched and length and length > batched:
        raise ConfigError(
            f"enable_chunked_prefill is off and max_model_len {length} is more than max_num_batched_tokens "
            f"{batched}: a prompt that long could never run; raise max_num_batched_tokens to {length}"
        )

"""Every effective value and where it came from: given, preset, policy, derived or default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...policies.base import PolicyError
from ...policies.registry import PolicyFile, load_policy
from ..arithmetic.memory import GIB
from ..arithmetic.shape import ModelShape
from ..errors import ConfigError
from .conflicts import chunks, refuse_policy_conflicts
from .hardware import Hardware
from .schema import ServeConfig
from .sources import LoadedConfig

Origin = Literal["given", "preset", "policy", "derived", "default", "unknown"]


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
    policy: PolicyFile
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
    policy: PolicyFile | None = None,
) -> Resolved:
    """Settles every knob from what was written, the policy file, the model and the hardware told.

    Without `policy` the one the configuration names is read. What needs a fact that was not told stays as
    written with origin `unknown`. Raises ConfigError where values contradict each other or the policy.
    """
    policy = policy or policy_of(loaded)
    values = {name: _written(loaded, name) for name in ServeConfig.model_fields}
    refuse_policy_conflicts(loaded, policy)
    _lay_policy(values, policy, loaded)
    _drop_chunk_size(values, loaded)
    for name, rule in DERIVED.items():
        if values[name].value in (None, "auto", -1):
            values[name] = rule(_Facts(values, hardware, shape, policy))
    _normalise(values)
    if values["dtype"].value == "bfloat16" and not _Facts(values, hardware, shape, policy).has_bfloat16:
        why = values["dtype"].why
        raise ConfigError(
            f"dtype: bfloat16 ({why}): {hardware and hardware.name} has none; set dtype: float16"
        )
    _refuse_contradictions(loaded, values)
    settled = {
        name: getattr(loaded.config, name) if effective.origin == "unknown" else effective.value
        for name, effective in values.items()
    }
    return Resolved(ServeConfig.model_validate(settled), values, policy, hardware, shape)


def policy_of(loaded: LoadedConfig) -> PolicyFile:
    """As `policy_file`. Raises ConfigError with the place of the key."""
    try:
        return policy_file(loaded.config)
    except ConfigError as error:
        entry = loaded.entries.get("policy")
        why = str(error).removeprefix("policy: ")
        raise ConfigError(f"{entry.named}: {why}" if entry else str(error)) from error


def policy_file(config: ServeConfig) -> PolicyFile:
    """The policy that a configuration names or holds; vLLM's `scheduling_policy` replaces its order.

    Raises ConfigError.
    """
    try:
        policy = load_policy(config.policy)
        if config.scheduling_policy is not None:
            policy = load_policy({**policy.model_dump(exclude_none=True), "order": config.scheduling_policy})
    except PolicyError as error:
        raise ConfigError(f"policy: {str(error).removeprefix('policy: ')}") from error
    return policy


def _lay_policy(values: dict[str, Effective], policy: PolicyFile, loaded: LoadedConfig) -> None:
    """Puts a policy file's own knobs where nothing was written; named over a preset, also over the preset's."""
    over_preset = loaded.origin("policy") == "given"
    for name, value in policy.knobs.given().items():
        gives_way = loaded.policy_wins or (over_preset and values[name].origin == "preset")
        if values[name].value is None or gives_way:
            values[name] = Effective(value, "policy", f"policy {policy.name}")


def _drop_chunk_size(values: dict[str, Effective], loaded: LoadedConfig) -> None:
    """A preset's step is the size of a chunk: it has no meaning once prompts are taken whole.

    No more has a given one under a policy that wins over what was given.
    """
    whole, step = values["enable_chunked_prefill"], values["max_num_batched_tokens"]
    by_preset = step.origin == "preset" and whole.origin in ("given", "policy")
    by_given = step.origin == "given" and whole.origin == "policy" and loaded.policy_wins
    if whole.value is False and (by_preset or by_given):
        values["max_num_batched_tokens"] = Effective(None, "default")


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a rule may read: the values settled so far, and what was told."""

    values: dict[str, Effective]
    hardware: Hardware | None
    shape: ModelShape | None
    policy: PolicyFile

    def value(self, name: str) -> Any:
        return self.values[name].value

    @property
    def has_bfloat16(self) -> bool:
        """Of NVIDIA's GPUs, those from compute capability 8.0 (Ampere) on."""
        capability = self.hardware.compute_capability if self.hardware else None
        return capability is None or capability >= (8, 0)


def _written(loaded: LoadedConfig, name: str) -> Effective:
    value = getattr(loaded.config, name)
    if name in loaded.entries:
        entry = loaded.entries[name]
        return Effective(value, entry.origin, str(entry.place))
    return Effective(value, "default")


def _device(facts: _Facts) -> Effective:
    if facts.hardware is None:
        return Effective(None, "unknown", "the hardware was not told")
    return Effective(facts.hardware.kind, "derived", f"this is {facts.hardware.describe()}")


def _dtype(facts: _Facts) -> Effective:
    device = facts.value("device")
    if device == "cpu":
        return Effective("float32", "derived", "float32 is fastest on a CPU")
    if device is None or facts.shape is None:
        return Effective("auto", "unknown", "needs the device and the model's config.json")
    if not facts.has_bfloat16 and facts.shape.dtype in ("float32", "bfloat16"):
        return Effective("float16", "derived", "this GPU has no bfloat16")
    if facts.shape.dtype == "float32":
        return Effective("bfloat16", "derived", "a float32 checkpoint runs in bfloat16 on a GPU")
    return Effective(facts.shape.dtype, "derived", "the checkpoint's type")


def _max_model_len(facts: _Facts) -> Effective:
    if facts.value("max_model_len") == -1:
        return Effective(-1, "unknown", "auto: the longest that fits, known once memory is measured")
    if facts.shape is None:
        return Effective(None, "unknown", "needs the model's config.json")
    made_for, longest = facts.shape.max_position_embeddings, facts.shape.longest_context
    if longest < made_for:
        why = f"the model's positions before its rope scaling changes, of {made_for}"
        return Effective(longest, "derived", why)
    return Effective(made_for, "derived", "the model's max_position_embeddings")


def _max_num_seqs(facts: _Facts) -> Effective:
    if facts.value("device") == "cpu":
        return Effective(64, "derived", "a CPU gains little beyond 64 sequences")
    if facts.hardware is None:
        return Effective(None, "unknown", "needs the hardware")
    return Effective(256, "derived", "256 on a GPU")


def _max_num_batched_tokens(facts: _Facts) -> Effective:
    if facts.value("enable_chunked_prefill") is False:
        length = facts.value("max_model_len")
        if length is None or length < 0:
            return Effective(None, "unknown", "without chunked prefill it is max_model_len, which is unknown")
        return Effective(max(length, 2048), "derived", "without chunked prefill a whole prompt must fit")
    if facts.value("device") == "cpu":
        return Effective(512, "derived", "512 on a CPU: a longer step stalls streams")
    if facts.hardware is None:
        return Effective(None, "unknown", "needs the hardware")
    large = facts.hardware.memory_bytes >= 70 * GIB
    return Effective(8192 if large else 2048, "derived", "8192 from 70 GiB of GPU memory, else 2048")


def _chunked(facts: _Facts) -> Effective:
    return Effective(chunks(facts.policy), "policy", f"policy {facts.policy.name}")


def _async_scheduling(facts: _Facts) -> Effective:
    device = facts.value("device")
    if device is None:
        return Effective(None, "unknown", "needs the device")
    return Effective(device == "cuda", "derived", "on with a GPU, whose steps run beside the host's")


def _fixed(value: Any, why: str) -> Callable[[_Facts], Effective]:
    def rule(facts: _Facts) -> Effective:
        return Effective(value, "default", why)

    return rule


def _kv_cache_dtype(facts: _Facts) -> Effective:
    dtype = facts.values["dtype"]
    if dtype.origin == "unknown":
        return Effective("auto", "unknown", "the model's type, which is unknown")
    return Effective(_LONG.get(dtype.value, dtype.value), "derived", "the model's type")


def _tokenizer(facts: _Facts) -> Effective:
    return Effective(facts.value("model") or None, "derived", "the model's own")


def _served_model_name(facts: _Facts) -> Effective:
    model = facts.value("model")
    return Effective((model,) if model else None, "derived", "the model as written")


# How a knob that nobody set is settled, in order: a rule may read what the ones before it settled.
DERIVED: dict[str, Callable[[_Facts], Effective]] = {
    "device": _device,
    "dtype": _dtype,
    "tokenizer": _tokenizer,
    "served_model_name": _served_model_name,
    "max_model_len": _max_model_len,
    "block_size": _fixed(16, "16 tokens waste about 8 a sequence"),
    "enable_prefix_caching": _fixed(True, "equal prefixes are computed once"),
    "enable_chunked_prefill": _chunked,
    "kv_cache_dtype": _kv_cache_dtype,
    "max_num_seqs": _max_num_seqs,
    "max_num_batched_tokens": _max_num_batched_tokens,
    "long_prefill_token_threshold": _fixed(0, "no limit"),
    "max_wait_s": _fixed(120.0, "nobody waits longer than two minutes for their turn"),
    "async_scheduling": _async_scheduling,
    "scheduler_reserve_full_isl": _fixed(True, "a prompt that does not fit would evict others"),
}

_LONG = {"float": "float32", "half": "float16", "fp8_e4m3": "fp8"}


def _normalise(values: dict[str, Effective]) -> None:
    for name in ("dtype", "kv_cache_dtype"):
        effective = values[name]
        if effective.value in _LONG:
            values[name] = Effective(_LONG[effective.value], effective.origin, effective.why)
    batched, seqs = values["max_num_batched_tokens"], values["max_num_seqs"]
    if seqs.origin == "derived" and batched.value and seqs.value and seqs.value > batched.value:
        values["max_num_seqs"] = Effective(
            batched.value, "derived", "one token a sequence: max_num_batched_tokens"
        )


def _refuse_contradictions(loaded: LoadedConfig, values: dict[str, Effective]) -> None:
    def value(name: str) -> Any:
        return values[name].value

    def place(*names: str) -> str:
        """Where the first of the knobs that somebody wrote stands; what a preset brings comes last."""
        written = [name for name in names if values[name].origin in ("given", "unknown")]
        written += [name for name in names if values[name].origin == "preset"]
        found = next((loaded.entries[name].place for name in written if name in loaded.entries), None)
        return f"{found}: " if found else ""

    seqs, batched, length = value("max_num_seqs"), value("max_num_batched_tokens"), value("max_model_len")
    if seqs and batched and seqs > batched:
        raise ConfigError(
            f"{place('max_num_seqs', 'max_num_batched_tokens')}max_num_seqs {seqs} is more than "
            f"max_num_batched_tokens {batched}: each running sequence needs a token a step; lower the first or "
            "raise the second"
        )
    if value("enable_chunked_prefill") is False and length == -1:
        raise ConfigError(
            f"{place('max_model_len')}without chunked prefill, max_model_len must be a number: a step must hold the "
            "longest prompt"
        )
    if value("enable_chunked_prefill") is False and batched and length and length > batched:
        raise ConfigError(
            f"{place('max_num_batched_tokens', 'enable_chunked_prefill')}enable_chunked_prefill is off and "
            f"max_model_len {length} is more than max_num_batched_tokens {batched}: a prompt that long could never "
            f"run; raise max_num_batched_tokens to {length}"
        )

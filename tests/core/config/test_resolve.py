"""Every effective value has an origin, and nothing is guessed about hardware that was not told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from camshaft.core.arithmetic.shape import ModelShape, shape_from_config
from camshaft.core.config import (
    Hardware,
    ServeConfig,
    find_cpu,
    find_hardware,
    find_shape,
    load_config,
    preset_names,
    presets_for,
    require_machine,
    resolve,
    with_policy,
)
from camshaft.core.config.resolve import Resolved
from camshaft.core.errors import CapacityError, ConfigError

GIB = 1 << 30
CPU = Hardware(kind="cpu", name="cpu", memory_bytes=16 * GIB, count=2)
H100 = Hardware(kind="cuda", name="NVIDIA H100 80GB HBM3", memory_bytes=int(79.18 * GIB))
T4 = Hardware(kind="cuda", name="Tesla T4", memory_bytes=15 * GIB, compute_capability=(7, 5))


def shape(**changes: Any) -> ModelShape:
    base = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    return shape_from_config({**base, **changes}, name="m")


def resolved(hardware: Hardware | None = None, model: ModelShape | None = None, **keys: Any) -> Resolved:
    return resolve(load_config({"model": "m", **keys}, purpose="inspect"), hardware, model)


def told(resolution: Resolved, name: str) -> tuple[Any, str]:
    return resolution.values[name].value, resolution.values[name].origin


def test_nothing_is_guessed_about_untold_hardware() -> None:
    settled = resolved()
    for name in (
        "device",
        "dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "async_scheduling",
    ):
        assert settled.values[name].origin == "unknown", name
        assert settled.values[name].why
        with pytest.raises(ConfigError, match=f"{name} cannot be settled"):
            settled.value(name)
    assert told(settled, "block_size") == (16, "default")


def test_every_value_is_settled_once_all_is_told() -> None:
    for hardware in (CPU, H100, T4):
        settled = resolved(hardware, shape())
        assert not [name for name, value in settled.values.items() if value.origin == "unknown"]
        for name, effective in settled.values.items():
            assert getattr(settled.config, name) == effective.value


def test_hardware_decides_what_hardware_should() -> None:
    cpu, big, small = (resolved(hardware, shape()) for hardware in (CPU, H100, T4))
    assert [told(r, "dtype")[0] for r in (cpu, big, small)] == ["float32", "bfloat16", "float16"]
    assert [told(r, "max_num_batched_tokens") for r in (cpu, big, small)] == [
        (512, "derived"),
        (8192, "derived"),
        (2048, "derived"),
    ]
    assert [told(r, "async_scheduling")[0] for r in (cpu, big, small)] == [False, True, True]
    assert told(big, "kv_cache_dtype") == ("bfloat16", "derived")
    assert told(big, "max_model_len") == (8192, "derived")


def test_a_gpu_without_bfloat16_is_not_asked_for_it() -> None:
    with pytest.raises(ConfigError, match=r"dtype: bfloat16 .*Tesla T4 has none; set dtype: float16"):
        resolved(T4, shape(), dtype="bfloat16")
    assert told(resolved(T4, shape(), dtype="half"), "dtype") == ("float16", "given")


def test_written_values_win_and_say_where_they_stand() -> None:
    settled = resolved(H100, shape(), max_num_seqs=7, dtype="half", kv_cache_dtype="fp8_e4m3")
    assert told(settled, "max_num_seqs") == (7, "given")
    assert told(settled, "dtype") == ("float16", "given")
    assert told(settled, "kv_cache_dtype") == ("fp8", "given")
    preset = resolve(load_config("cpu-demo"), CPU)
    assert told(preset, "max_num_batched_tokens") == (256, "preset")
    assert preset.values["max_num_batched_tokens"].why.startswith("cpu-demo.yaml:")


def test_a_policys_knobs_hold_where_nothing_was_written() -> None:
    settled = resolved(CPU, shape(), policy="naive")
    assert told(settled, "max_num_seqs") == (1, "policy")
    assert told(settled, "enable_chunked_prefill") == (False, "policy")
    assert told(settled, "max_num_batched_tokens") == (8192, "derived")  # a whole prompt must fit
    assert told(resolved(CPU, shape(), policy="static", max_wait_s=9), "max_wait_s") == (9, "given")


def test_a_policy_named_over_a_preset_wins_over_the_presets_knobs() -> None:
    settled = resolve(load_config("cpu-demo", ["policy=naive"]), CPU)
    assert told(settled, "max_num_seqs") == (1, "policy")
    assert told(settled, "max_num_batched_tokens") == (4096, "derived")
    settled = resolve(load_config("cpu-demo", ["enable_chunked_prefill=false"]), CPU)
    assert told(settled, "max_num_batched_tokens") == (4096, "derived")


def test_another_policy_wins_over_everything_that_was_written() -> None:
    loaded = load_config({"model": "m", "max_num_seqs": 9, "max_num_batched_tokens": 99, "policy": "latency"})
    assert told(resolve(with_policy(loaded, "naive"), CPU, shape()), "max_num_seqs")[0] == 1
    static = resolve(with_policy(loaded, "static"), CPU, shape())
    assert told(static, "max_num_seqs")[0] == 9
    assert told(static, "max_num_batched_tokens")[0] == 8192
    chunked = resolve(with_policy(loaded, "continuous-chunked"), CPU, shape())
    assert told(chunked, "max_num_batched_tokens") == (99, "given")


def test_a_policy_that_wins_leaves_word_of_who_wrote_what() -> None:
    loaded = load_config("cpu-demo", ["port=9", "enable_chunked_prefill=true"])
    other = with_policy(loaded, "static")  # contradicts what was given, and wins
    assert [other.origin(name) for name in ("port", "model", "policy")] == ["given", "preset", "given"]
    assert told(resolve(other, CPU), "port") == (9, "given")
    assert told(resolve(other, CPU), "enable_chunked_prefill") == told(
        resolve(with_policy(load_config("cpu-demo"), "static"), CPU), "enable_chunked_prefill"
    )


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"policy": "continuous", "enable_chunked_prefill": True}, "CAMSHAFT-POL-01"),
        ({"policy": "latency", "enable_chunked_prefill": False}, "CAMSHAFT-POL-02"),
        ({"policy": "static", "long_prefill_token_threshold": 64}, "CAMSHAFT-POL-03"),
        ({"policy": "naive", "max_num_seqs": 2}, "CAMSHAFT-POL-04"),
    ],
)
def test_a_knob_that_contradicts_the_policy_is_an_error(keys: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError, match=rf"{code}: .* contradicts policy {keys['policy']}"):
        resolved(CPU, shape(), **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"policy": "continuous", "enable_chunked_prefill": False},
        {"policy": "naive", "max_num_seqs": 1},
        {"policy": "static", "long_prefill_token_threshold": 0},
        {"enable_chunked_prefill": False},
        {"policy": "continuous-chunked", "max_num_seqs": 3, "enable_chunked_prefill": True},
    ],
)
def test_a_knob_that_agrees_or_whose_policy_nobody_named_is_none(keys: dict[str, Any]) -> None:
    settled = resolved(CPU, shape(), **keys)
    assert all(told(settled, name) == (keys[name], "given") for name in keys)


def test_vllms_scheduling_policy_sets_the_order() -> None:
    assert resolved(CPU, shape(), scheduling_policy="priority").policy.order == "priority"


def test_a_wrong_policy_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"^\(given\): policy: order: no 'fifo'"):
        resolve(load_config({"model": "m", "policy": {"order": "fifo"}}))
    with pytest.raises(ConfigError, match=r"^--set policy: no policy 'chunky'"):
        resolve(load_config("cpu-demo", ["policy=chunky"]), CPU)


def test_values_that_can_never_work_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs 600 is more than max_num_batched_tokens 512"):
        resolved(CPU, shape(), max_num_seqs=600)
    with pytest.raises(ConfigError, match=r"^--set max_num_batched_tokens: max_num_seqs 32 is more than"):
        resolve(load_config("cpu-demo", ["max_num_batched_tokens=4"]), CPU, shape())
    with pytest.raises(ConfigError, match="a prompt that long could never run"):
        resolved(CPU, shape(), enable_chunked_prefill=False, max_num_batched_tokens=64)
    assert told(resolved(CPU, shape(), max_num_batched_tokens=8), "max_num_seqs") == (8, "derived")


@pytest.mark.parametrize("keys", [{"enable_chunked_prefill": False}, {"policy": "continuous"}])
def test_whole_prompts_need_a_longest_one_that_is_known(keys: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: m\nmax_model_len: auto\n")
    loaded = load_config(
        file, [f"{name}={str(value).lower()}" for name, value in keys.items()], purpose="inspect"
    )
    with pytest.raises(
        ConfigError, match=r"serve.yaml:2:1: without chunked prefill, max_model_len must be a number"
    ):
        resolve(loaded, H100, shape())
    assert told(resolved(H100, shape(), max_model_len=-1), "max_num_batched_tokens") == (8192, "derived")


def test_a_gpu_configuration_without_a_gpu_names_what_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.core.config.hardware.find_gpu", lambda: None)
    settled = resolve(load_config({"model": "m", "device": "cuda"}), find_hardware("cuda"))
    with pytest.raises(ConfigError, match=r"no NVIDIA GPU answers.*a preset that works here: cpu-demo"):
        require_machine(settled)


@pytest.mark.parametrize(
    ("keys", "why"),
    [({"kv_cache_dtype": "fp8"}, "on a CPU"), ({"quantization": "fp8"}, "as the checkpoint stores them;")],
)
def test_storage_types_that_a_cpu_is_not_served_with_are_refused(keys: dict[str, str], why: str) -> None:
    small = shape(num_hidden_layers=2)
    with pytest.raises(ConfigError, match=f"{next(iter(keys))}=fp8 .*{why}"):
        require_machine(resolved(CPU, small, **keys))
    require_machine(resolved(H100, small, **keys))
    require_machine(resolved(CPU, small, kv_cache_dtype="float32"))


def test_weights_are_never_said_to_be_packed_otherwise_than_they_are_served() -> None:
    packed = replace(shape(), quantization="fbgemm_fp8")
    require_machine(resolved(H100, packed, quantization="fbgemm_fp8"))
    require_machine(resolved(H100, packed, quantization="fp8"))
    with pytest.raises(ConfigError, match=r"quantization=awq .*or quantised to fp8 at load"):
        require_machine(resolved(H100, packed, quantization="awq"))
    with pytest.raises(ConfigError, match=r"as the checkpoint stores them;"):
        require_machine(resolved(H100, replace(packed, quantization="mxfp4"), quantization="fp8"))


def test_a_model_that_does_not_fit_is_refused_with_what_is_missing() -> None:
    settled = resolved(T4, shape(), max_num_seqs=8)
    with pytest.raises(CapacityError, match=r"GiB are missing.*Tesla T4"):
        require_machine(settled)
    assert require_machine(resolved(H100, shape())) is not None


def test_a_cache_of_a_given_size_must_hold_a_request_and_fit_the_memory() -> None:
    small = resolved(CPU, shape(num_hidden_layers=2), kv_cache_memory_bytes="10M")
    with pytest.raises(
        CapacityError,
        match=r"one request of max_model_len 8,192 needs .* are missing. Raise kv_cache_memory_bytes \(given\), or",
    ):
        require_machine(small)
    large = resolved(CPU, shape(num_hidden_layers=2), kv_cache_memory_bytes="40G", max_num_seqs=512)
    with pytest.raises(
        CapacityError, match=r"GiB are free: .* are missing. Lower kv_cache_memory_bytes \(given"
    ):
        require_machine(large)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (None, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"type": "linear", "factor": 2.0}, 16384),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 8192),
        ({"rope_type": "longrope", "original_max_position_embeddings": 2048}, 2048),
        ({"rope_type": "dynamic", "factor": 4.0}, 8192),
    ],
)
def test_a_length_the_model_was_not_made_for_is_refused(scaling: dict[str, Any] | None, longest: int) -> None:
    made = replace(shape(), max_position_embeddings=8192, rope_scaling=scaling)
    require_machine(resolved(H100, made, max_model_len=longest))
    with pytest.raises(
        ConfigError, match=rf"max_model_len: {longest + 1} is more than the {longest} positions"
    ):
        require_machine(resolved(H100, made, max_model_len=longest + 1))


def test_a_model_is_judged_by_its_sheet_before_it_is_fetched() -> None:
    shape = find_shape("meta-llama/Llama-3.3-70B-Instruct") or find_shape("llama-3.3-70b")
    assert shape is not None
    assert shape.num_layers == 80
    with pytest.raises(CapacityError, match="weights 131"):
        require_machine(resolved(H100, shape))
    assert find_shape("nobody/has-this-model") is None


def test_an_unreadable_model_is_of_unknown_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_shape(str(tmp_path)) is None


def test_an_unknown_shape_leaves_the_memory_question_open() -> None:
    assert require_machine(resolved(CPU, None)) is None


def test_the_cpu_preset_works_on_a_small_machine_and_not_on_a_tiny_one() -> None:
    assert "cpu-demo" in presets_for(CPU)
    assert "cpu-demo" not in presets_for(H100)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves_for_the_hardware_it_names(name: str) -> None:
    loaded = load_config(name, purpose="inspect")
    settled = resolve(loaded, CPU if loaded.config.device == "cpu" else H100, shape())
    assert settled.value("max_num_seqs") <= settled.value("max_num_batched_tokens")


def test_this_machine_is_found() -> None:
    cpu = find_cpu()
    assert cpu.kind == "cpu"
    assert cpu.count >= 1
    assert 0 < (cpu.free_bytes or 0) <= cpu.memory_bytes
    found = find_hardware("auto")
    assert found is not None
    assert find_hardware("cpu") is not None


def test_every_knob_is_described_and_grouped() -> None:
    for name, field in ServeConfig.model_fields.items():
        assert field.description, name
        assert isinstance(field.json_schema_extra, dict)
        assert field.json_schema_extra["group"], name


def test_presets_made_for_the_device_come_first_and_of_these_the_same_model() -> None:
    assert presets_for(H100, "meta-llama/Llama-3.1-70B-Instruct")[0] == "h100-70b"
    assert presets_for(H100, "meta-llama/Llama-3.1-8B-Instruct")[0] == "h100-8b"
    with pytest.raises(
        CapacityError, match="no preset is made for it; one for another device that fits: h100-8b-fp8"
    ):
        require_machine(resolved(T4, shape()))

"""Step times against the published kernel tables and against physics."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.arithmetic.model_sheets import shape_named
from camshaft.core.arithmetic.products import Gemm, dense_gemms
from camshaft.core.arithmetic.quantization import UNQUANTIZED, quantization_named
from camshaft.core.arithmetic.shape import shape_from_config
from camshaft.core.arithmetic.sizes import weight_bytes
from camshaft.core.errors import ConfigError
from camshaft.diagnostics.cost import gemm
from camshaft.diagnostics.cost.band import error_percent
from camshaft.diagnostics.cost.gemm import GemmTimer, visited_experts
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.cost.speculation import SpeculativeCost, break_even_batch, speedup, tokens_per_step
from camshaft.diagnostics.cost.step import CostSettings, StepCost

H100 = load_hardware("h100")
NONE = np.empty(0, dtype=np.int64)


@pytest.mark.parametrize(
    ("tp", "tokens", "table_us"),
    [(1, 1, 327), (1, 128, 346), (1, 256, 406), (2, 1, 175), (2, 256, 222), (4, 32, 106), (8, 128, 75)],
)
def test_products_of_a_70b_layer_take_what_was_measured(tp: int, tokens: int, table_us: float) -> None:
    timer = GemmTimer(H100, quantization_named("fp8"), "bfloat16")
    layer = sum(timer.time_us(g, tokens) for g in dense_gemms(shape_named("llama-3.3-70b"), tp))
    assert layer == pytest.approx(table_us, rel=0.12)


@pytest.mark.parametrize(
    ("dtype", "tokens", "n", "k", "table_us"),
    [
        ("bfloat16", 1, 10240, 8192, 61),
        ("bfloat16", 256, 5120, 5120, 29),
        ("bfloat16", 8192, 8192, 8192, 1542),
        ("fp8", 64, 51200, 5120, 109),
        ("fp8", 4096, 10240, 8192, 596),
    ],
)
def test_single_products_follow_the_table(dtype: str, tokens: int, n: int, k: int, table_us: float) -> None:
    scheme = quantization_named("fp8") if dtype == "fp8" else UNQUANTIZED
    timer = GemmTimer(H100, scheme, "bfloat16")
    assert timer.time_us(Gemm("x", n, k, 1), tokens) == pytest.approx(table_us, rel=0.15)


def test_a_type_that_the_sheet_does_not_time_is_refused() -> None:
    """As a CPU's, which measures its own type alone."""
    peak, curve = H100.compute_tflops["bfloat16"], H100.gemm["bfloat16"]
    own = msgspec.structs.replace(H100, compute_tflops={"float32": peak}, gemm={"float32": curve})
    assert GemmTimer(own, UNQUANTIZED, "float32").curve is curve
    with pytest.raises(ConfigError, match="times products in float32 and none in bfloat16"):
        GemmTimer(own, UNQUANTIZED, "bfloat16")


@pytest.mark.parametrize(
    ("kv", "context", "table_ms"),
    [("auto", 1024, 47.6), ("auto", 2048, 60.7), ("fp8", 1536, 46.4), ("fp8", 2048, 50.2)],
)
def test_decode_steps_of_70b_fp8_sum_to_the_tables(kv: str, context: int, table_ms: float) -> None:
    """Products and attention of 128 sequences on one H100, as summed from the same tables."""
    cost = StepCost(shape_named("llama-3.3-70b"), H100, CostSettings(quantization="fp8", kv_cache_dtype=kv))
    time = cost.decode_step(128, context)
    assert time.gemm + time.decode_attention + time.head == pytest.approx(table_ms, rel=0.06)


def test_unpacked_weights_are_read_faster_and_multiplied_slower() -> None:
    plain, packed = UNQUANTIZED, quantization_named("awq")
    product = Gemm("x", 10240, 5120, 1)
    for gpu, slower in (("a100", True), ("rtx 4090", False)):
        hardware = load_hardware(gpu)
        wide, narrow = (GemmTimer(hardware, scheme, "bfloat16") for scheme in (plain, packed))
        assert narrow.time_us(product, 1) < 0.5 * wide.time_us(product, 1)
        assert (narrow.time_us(product, 2048) > 1.2 * wide.time_us(product, 2048)) == slower


def test_whole_experts_wait_for_the_busiest_device() -> None:
    """Of many tokens the busiest device has 1.5 times its share; cut experts read every row's input on each device."""
    timer, product = GemmTimer(H100, UNQUANTIZED, "bfloat16"), Gemm("expert", 3072, 4096, 1)
    whole = timer.grouped_time_us(product, 65_536, 128, 8, devices=8)
    parts = timer.grouped_time_us(Gemm("expert", 3072 // 8, 4096, 1), 65_536, 128, 8)
    assert 1.25 * parts < whole < 1.5 * parts


def test_few_tokens_wait_for_the_device_that_holds_most_of_their_experts() -> None:
    """Of 32 experts that four tokens visit over four devices one holds some 10, not 8."""
    timer, product = GemmTimer(H100, UNQUANTIZED, "bfloat16"), Gemm("expert", 3072, 4096, 1)
    whole = timer.grouped_time_us(product, 4, 256, 8, devices=4)
    parts = timer.grouped_time_us(Gemm("expert", 3072 // 4, 4096, 1), 4, 256, 8)
    assert 1.2 * parts < whole < 1.5 * parts


# Microseconds of a whole expert layer (both products, what lies between, sorting and summing), evenly drawn experts:
# device, weights, experts, width, hidden size, experts a token, and times by tokens. Pull requests of vllm-project/vllm:
# 24700, 24700, 44818, 40542 (mean of tuned and default tiles), 55511, 53819.
EXPERT_LAYERS = [
    ("h100", "none", 8, 7168, 4096, 2, {1: 144, 4: 351, 16: 471, 64: 483, 256: 537, 512: 662}),
    ("h100", "fp8", 128, 768, 2048, 8, {1: 40, 4: 78, 16: 165, 64: 237, 256: 262}),
    ("h200", "none", 128, 704, 2816, 8, {64: 384, 256: 420, 1024: 528, 4096: 1190}),
    ("a100", "none", 64, 1408, 2048, 6, {16: 533, 64: 688, 256: 743, 1024: 976, 4096: 2778}),
    ("a100 pcie", "none", 256, 512, 3072, 8, {1: 70, 4: 203, 16: 598, 64: 1260}),
    ("l40s", "fp8", 256, 512, 2048, 8, {8: 260, 64: 974, 256: 1167, 1024: 1303, 4096: 1905}),
]
LAYERS = 8


@pytest.mark.parametrize(
    ("gpu", "weights", "experts", "width", "hidden", "chosen", "measured"), EXPERT_LAYERS
)
def test_expert_layers_take_what_was_published(
    gpu: str, weights: str, experts: int, width: int, hidden: int, chosen: int, measured: dict[int, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What a step tells for its experts, and for small kernels over those of the same model without experts."""
    monkeypatch.setattr(gemm, "EVENNESS", 1e4)
    plain = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 32_000,
    }
    mixture = {
        **plain,
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
    }
    settings = CostSettings(quantization=None if weights == "none" else weights, enforce_eager=True)
    with_experts, without = (
        StepCost(shape_from_config(config), load_hardware(gpu), settings) for config in (mixture, plain)
    )

    def layer_us(tokens: int) -> float:
        times = [cost.decode_step(tokens, 1) for cost in (with_experts, without)]
        return (times[0].experts + times[0].elementwise - times[1].elementwise) * 1e3 / LAYERS

    errors = [layer_us(tokens) / us - 1 for tokens, us in measured.items()]
    assert np.mean(np.abs(errors)) <= 0.12
    assert max(map(abs, errors)) <= 0.25


def test_a_router_in_float32_costs_small_steps_some_percent_and_prompts_its_arithmetic() -> None:
    """Published for MiniMax M2.5 on eight B200: 9.1 % of a step of 64 decodes, 3.3 % in TF32 (sglang, pull 22744)."""
    shape = shape_named("minimax-m2.5")
    settings = CostSettings(tensor_parallel_size=8, enable_expert_parallel=True)
    own = StepCost(shape, load_hardware("b200"), settings)
    narrow = StepCost(replace(shape, architecture="other"), load_hardware("b200"), settings)
    step, without = own.decode_step(64, 1600), narrow.decode_step(64, 1600)
    assert 0.03 <= (step.gemm - without.gemm) / step.total <= 0.09

    prompt = own.prefill_step(8192).gemm - narrow.prefill_step(8192).gemm
    flops = 2 * 8192 * shape.hidden_size * shape.num_experts * shape.num_moe_layers
    assert prompt >= flops / (load_hardware("b200").compute_tflops["float32"] * 1e9) * 0.9


def test_a_shared_expert_has_rows_of_its_own() -> None:
    shape = shape_named("glm-4.5-air")
    alone = replace(shape, shared_expert_size=0)
    parts = [
        StepCost(s, H100, CostSettings(tensor_parallel_size=4)).prefill_step(8192) for s in (shape, alone)
    ]
    moved = 8192 * 3 * (shape.hidden_size + shape.shared_expert_size / 4) * 2 * shape.num_moe_layers
    least_ms = moved / (H100.memory_bandwidth_gb_s * 1e6)
    assert least_ms <= parts[0].elementwise - parts[1].elementwise <= 3 * least_ms
    assert parts[0].gemm > parts[1].gemm


def test_less_is_known_of_glm_than_of_other_mixtures() -> None:
    dense, mixture, minimax, glm = (
        error_percent(H100, shape_named(name))
        for name in ("llama-3.1-8b", "qwen3-235b-a22b", "minimax-m2.5", "glm-4.6")
    )
    band = H100.error_band
    assert dense == (band.tpot_percent, band.ttft_percent)
    assert mixture == minimax == (band.moe_tpot_percent, band.moe_ttft_percent)
    assert all(wide > usual for wide, usual in zip(glm, mixture, strict=True))


def test_a_step_is_never_faster_than_reading_the_weights() -> None:
    for name, hardware in (("llama-3.1-8b", "h100"), ("llama-3.1-8b", "rtx 4090"), ("qwen3-32b", "a100")):
        shape, sheet = shape_named(name), load_hardware(hardware)
        floor_ms = weight_bytes(shape).linear / (sheet.memory_bandwidth_gb_s * 1e6)
        assert StepCost(shape, sheet).decode_step(1, 128).total > floor_ms


def test_eager_small_batches_wait_for_launches() -> None:
    shape = shape_named("llama-3.1-8b")
    graphs = StepCost(shape, H100, CostSettings()).decode_step(1, 512)
    eager = StepCost(shape, H100, CostSettings(enforce_eager=True)).decode_step(1, 512)
    assert graphs.launch == 0
    assert eager.launch > 0
    assert eager.total > 1.3 * graphs.total


def test_async_scheduling_hides_the_host() -> None:
    shape = shape_named("llama-3.1-8b")
    plain = StepCost(shape, H100, CostSettings()).decode_step(64, 512)
    hidden = StepCost(shape, H100, CostSettings(async_scheduling=True)).decode_step(64, 512)
    assert plain.host > hidden.host > 0
    on_device = [time.total - time.launch - time.host for time in (plain, hidden)]
    assert on_device[0] == pytest.approx(on_device[1])


def test_prompts_of_latent_attention_multiply_keys_of_192_and_values_of_128() -> None:
    shape, hardware = shape_named("deepseek-v3"), load_hardware("h200")
    plain = replace(shape, kv_lora_rank=0)
    tokens, starts = np.array([64]), np.array([100_000])
    latent, ordinary = (StepCost(s, hardware).attention_ms(NONE, tokens, starts) for s in (shape, plain))
    assert latent == pytest.approx(1.25 * ordinary, rel=0.01)


def test_window_layers_read_only_their_window() -> None:
    cost = StepCost(shape_named("gpt-oss-20b"), H100)
    short, long = cost.decode_step(64, 2000), cost.decode_step(64, 4000)
    grown = long.decode_attention - short.decode_attention
    assert grown > 0
    full = StepCost(shape_named("llama-3.1-8b"), H100)
    assert grown < full.decode_step(64, 4000).decode_attention - full.decode_step(64, 2000).decode_attention


def test_four_bit_weights_read_a_quarter_at_batch_one_and_help_less_in_prefill() -> None:
    shape = shape_named("qwen2.5-32b")
    plain, packed = (StepCost(shape, H100, CostSettings(quantization=q)) for q in (None, "awq"))
    assert packed.decode_step(1, 128).gemm < 0.5 * plain.decode_step(1, 128).gemm
    assert packed.prefill_step(8192).gemm > 0.8 * plain.prefill_step(8192).gemm


def test_a_mixture_reads_more_experts_as_the_batch_grows() -> None:
    cost = StepCost(shape_named("qwen3-30b-a3b"), H100)
    one, many = cost.decode_step(1, 128).experts, cost.decode_step(64, 128).experts
    assert 4 * one < many


def test_speculation_pays_alone_and_not_in_a_crowd() -> None:
    target = StepCost(shape_named("llama-3.1-70b"), H100, CostSettings(quantization="fp8"))
    draft = StepCost(shape_named("llama-3.2-1b"), H100)
    cost = SpeculativeCost(target, draft, drafted=4, acceptance=0.8)
    assert speedup(cost, 1, 1000) > 1.5
    limit = break_even_batch(cost, 1000)
    assert 8 < limit < 1024
    assert speedup(cost, limit + 1, 1000) <= 1
    assert break_even_batch(SpeculativeCost(target, draft, drafted=5, acceptance=0.05), 1000) == 0


def test_tokens_per_step_of_speculation() -> None:
    assert tokens_per_step(3, 0.0) == 1
    assert tokens_per_step(3, 1.0) == 4
    assert tokens_per_step(1, 0.5) == pytest.approx(1.5)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    decodes=st.integers(0, 256),
    context=st.integers(1, 30_000),
    chunk=st.integers(0, 8192),
    start=st.integers(0, 20_000),
)
def test_more_work_never_takes_less_time(decodes: int, context: int, chunk: int, start: int) -> None:
    cost = StepCost(shape_named("llama-3.1-8b"), H100)

    def total(sequences: int, length: int, tokens: int, past: int) -> float:
        chunks = (np.array([tokens]), np.array([past])) if tokens else (NONE, NONE)
        return cost.step(np.full(sequences, length), *chunks, sequences + bool(tokens)).total

    if decodes + chunk == 0:
        return
    base = total(decodes, context, chunk, start)
    assert base > 0
    assert total(decodes, context + 1000, chunk, start) >= base - 1e-9
    assert total(decodes, context, chunk, start + 1000) >= base - 1e-9
    # efficiency rises with tokens, so a slightly larger product may be a little faster, as measured
    assert total(decodes + 64, context, chunk, start) >= 0.93 * base
    if chunk:
        assert total(decodes, context, 2 * chunk, start) >= 0.97 * base


def test_prefill_is_bounded_by_the_peak() -> None:
    shape = shape_named("llama-3.1-70b")
    cost = StepCost(shape, H100, CostSettings(quantization="fp8"))
    floor_ms = 2 * sum(g.elements for g in dense_gemms(shape)) * 8192 / 1979e12 * 1e3
    assert floor_ms < cost.prefill_step(8192).gemm < 2 * floor_ms


def test_tokens_of_a_batch_share_experts() -> None:
    """One token visits its k experts, many visit nearly all; of all between fewer than if all were liked alike."""
    one, some, many = (visited_experts(tokens, 128, 4) for tokens in (1, 32, 100_000))
    assert one == pytest.approx(4)
    assert 4 < some < 0.9 * 128 * (1 - (1 - 4 / 128) ** 32)
    assert many == pytest.approx(128, rel=1e-4)
    assert visited_experts(3, 8, 8) == 8


def test_decodes_of_many_small_experts_wait_for_launches_where_attention_is_not_in_graphs() -> None:
    """Ten requests of 1,024 and 128 tokens on one H100: 2.46 s, and 1.67 s where graphs hold attention (vLLM, pull 25444)."""
    shape = shape_named("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8")
    whole, split = (
        StepCost(shape, H100, CostSettings(attention_in_graphs=inside)).decode_step(10, 1088).total
        for inside in (True, False)
    )
    assert (split - whole) * 127 == pytest.approx(2457 - 1672, rel=0.15)
    dense = [
        StepCost(shape_named("llama-3.1-8b"), H100, CostSettings(attention_in_graphs=inside))
        .decode_step(10, 1088)
        .total
        for inside in (True, False)
    ]
    assert dense[0] == dense[1]


def test_whole_experts_spread_over_devices_share_the_reading() -> None:
    """At few tokens an expert product is bound by reading; over four devices each reads a quarter."""
    shape, hardware = shape_named("minimax-m2"), H100
    parts = StepCost(shape, hardware, CostSettings(tensor_parallel_size=4)).decode_step(32, 1000)
    whole = StepCost(
        shape, hardware, CostSettings(tensor_parallel_size=4, enable_expert_parallel=True)
    ).decode_step(32, 1000)
    alone = StepCost(shape, hardware, CostSettings()).decode_step(32, 1000)
    assert whole.experts == pytest.approx(alone.experts / 4, rel=0.35)
    assert parts.experts == pytest.approx(whole.experts, rel=0.35)


def test_copies_that_share_experts_compute_the_tokens_of_all() -> None:
    """Eight copies of 16 tokens visit whole experts as one copy of 128 over eight devices does."""
    shape, hardware = shape_named("deepseek-v3"), load_hardware("h200")
    copies = CostSettings(data_parallel_size=8, enable_expert_parallel=True, enforce_eager=True)
    one = CostSettings(tensor_parallel_size=8, enable_expert_parallel=True, enforce_eager=True)
    shared = StepCost(shape, hardware, copies).decode_step(16, 1000)
    together = StepCost(shape, hardware, one).decode_step(128, 1000)
    alone = StepCost(shape, hardware, CostSettings(enforce_eager=True)).decode_step(16, 1000)
    assert shared.experts == pytest.approx(together.experts)
    assert shared.experts < alone.experts
    assert shared.communication > 0
    assert alone.communication == 0


def test_copies_that_share_experts_cut_them_without_expert_parallelism() -> None:
    shape, hardware = shape_named("qwen3-30b-a3b"), load_hardware("h200")
    cut = StepCost(shape, hardware, CostSettings(data_parallel_size=2)).decode_step(16, 1000)
    by_tensors = StepCost(shape, hardware, CostSettings(tensor_parallel_size=2)).decode_step(32, 1000)
    assert cut.experts == pytest.approx(by_tensors.experts)

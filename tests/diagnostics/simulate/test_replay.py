"""The virtual clock: core's scheduler on predicted step times."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.core.arithmetic.model_sheets import shape_named
from camshaft.core.config import ServeConfig, load_config
from camshaft.core.config.sources import vllm_names
from camshaft.core.errors import CapacityError, ConfigError
from camshaft.core.workload import Workload, load_workload
from camshaft.diagnostics.cost.hardware import load_hardware
from camshaft.diagnostics.cost.step import StepCost
from camshaft.diagnostics.results import Targets
from camshaft.diagnostics.simulate import EngineKind, Frontend, Prepared, prepare, vllm_defaults
from camshaft.diagnostics.simulate.modelled import MODELLED
from camshaft.diagnostics.simulate.prepare import SpeculativeCost
from camshaft.diagnostics.simulate.replay import _Simulation, replay


def prepared(targets: Targets | None = None, engine: EngineKind | None = None, **knobs: Any) -> Prepared:
    config = {"model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192, **knobs}
    return prepare(
        load_config(config, purpose="inspect"),
        load_hardware("h100"),
        shape_named(config["model"]),
        engine=engine,
        targets=targets,
    )


def closed(concurrency: int, requests: int, inputs: Any, outputs: Any, **more: Any):
    arrival = {"kind": "closed", "concurrency": concurrency, "requests": requests}
    return load_workload({"arrival": arrival, "input_tokens": inputs, "output_tokens": outputs, **more})


MIXED = closed(16, 64, {"uniform": [64, 4000]}, {"uniform": [16, 256]})


def test_every_token_of_the_load_is_counted() -> None:
    done = prepared().replay(MIXED)
    summary = MIXED.summary()
    assert done.result.completed == 64
    assert done.result.output_tokens == pytest.approx(64 * summary.output_tokens_mean)
    assert done.result.input_tokens == pytest.approx(64 * summary.input_tokens_mean)
    assert len(done.records) == done.result.requests
    assert done.log.column("prefill_tokens").sum() == done.result.input_tokens


def test_the_same_load_gives_the_same_result() -> None:
    first, second = prepared().replay(MIXED), prepared().replay(MIXED)
    assert first.result == second.result
    assert (first.log.columns == second.log.columns).all()


def test_time_is_the_sum_of_the_steps_and_of_idleness() -> None:
    log = prepared().replay(closed(1, 3, 100, 8)).log
    ends, took = log.column("end_s"), log.column("duration_ms")
    assert (ends[1:] - ends[:-1] >= took[1:] / 1e3 - 1e-9).all()
    assert took == pytest.approx(log.parts.sum(axis=1))
    assert sum(log.shares().values()) == pytest.approx(1)


@pytest.mark.slow
def test_the_four_policies_come_out_in_the_textbook_order() -> None:
    load = closed(16, 48, {"uniform": [32, 7000]}, {"uniform": [64, 256]})
    found = {
        name: prepared(policy=name, **knobs).replay(load).result
        for name, knobs in {
            "naive": {},
            "static": {},
            "continuous": {},
            "continuous-chunked": {"max_num_batched_tokens": 1024},
        }.items()
    }
    rates = [found[name].throughput_output_tokens_per_s for name in ("naive", "static", "continuous")]
    assert rates[0] < rates[1] < rates[2]
    chunked, whole = found["continuous-chunked"], found["continuous"]
    assert chunked.itl_ms is not None
    assert whole.itl_ms is not None
    assert chunked.throughput_output_tokens_per_s == pytest.approx(
        whole.throughput_output_tokens_per_s, rel=0.15
    )
    assert chunked.itl_ms.p99 < whole.itl_ms.p99


def test_smaller_chunks_bound_the_gap_between_tokens() -> None:
    load = closed(8, 32, 6000, 64)
    gaps = []
    for budget in (512, 2048, 8192):
        itl = prepared(max_num_batched_tokens=budget).replay(load).result.itl_ms
        assert itl is not None
        gaps.append(itl.max)
    assert gaps[0] < gaps[1] < gaps[2]


def test_a_cache_that_is_too_small_evicts_and_still_finishes() -> None:
    done = prepared(num_gpu_blocks_override=700, scheduler_reserve_full_isl=False).replay(
        closed(16, 48, 1000, 900)
    )
    assert done.result.preemptions
    assert done.result.completed == 48
    assert done.result.kv is not None
    assert done.result.kv.peak_used > 0.95 * 700


def test_sessions_find_their_own_history_in_the_cache() -> None:
    sessions = load_workload(
        {
            "arrival": {"kind": "sessions", "sessions": 6, "turns": 4, "think_s": 0.5, "concurrency": 3},
            "input_tokens": 300,
            "output_tokens": 60,
        }
    )
    on, off = prepared(enable_prefix_caching=True), prepared(enable_prefix_caching=False)
    with_cache, without = on.replay(sessions).result, off.replay(sessions).result
    assert with_cache.kv is not None
    assert with_cache.kv.hit_rate is not None
    assert with_cache.kv.hit_rate > 0.5
    assert with_cache.ttft_ms is not None
    assert without.ttft_ms is not None
    assert with_cache.ttft_ms.mean < without.ttft_ms.mean


def test_arrivals_above_the_capacity_are_called_saturated() -> None:
    def at(rate: float) -> bool:
        arrival = {"kind": "poisson", "rate": rate, "requests": 120}
        load = load_workload({"arrival": arrival, "input_tokens": 2000, "output_tokens": 200})
        return prepared(max_num_seqs=64).replay(load).result.saturated

    assert not at(2)
    assert at(60)


def test_targets_decide_what_is_good() -> None:
    generous = prepared(Targets(ttft_ms=1e6, itl_ms=1e6)).replay(MIXED).result
    strict = prepared(Targets(ttft_ms=1e6, itl_ms=0.001)).replay(MIXED).result
    assert generous.goodput_requests_per_s == pytest.approx(generous.throughput_requests_per_s)
    assert strict.goodput_requests_per_s == 0


def test_a_request_too_long_for_the_engine_fails_and_the_rest_run() -> None:
    mixed = closed(4, 40, {"uniform": [100, 12_000]}, 16)
    result = prepared(max_model_len=8192).replay(mixed).result
    assert 0 < result.failed < 40
    assert result.completed + result.failed == 40
    with pytest.raises(CapacityError, match="no request of the workload can run"):
        prepared(max_model_len=4096).replay(closed(1, 2, 5000, 16))


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    heavy = prepared(model="meta-llama/Llama-3.3-70B-Instruct")
    with pytest.raises(CapacityError, match="weights 131"):
        heavy.replay(MIXED)


def test_one_knob_is_turned_and_the_rest_stays() -> None:
    base = prepared(max_num_seqs=8)
    turned = base.turned(max_num_seqs=32)
    assert turned.params.max_num_seqs == 32
    assert base.params.max_num_seqs == 8
    assert turned.params.max_num_batched_tokens == base.params.max_num_batched_tokens
    assert turned.replay(MIXED).result.ttft_ms.mean < base.replay(MIXED).result.ttft_ms.mean  # type: ignore[union-attr]


def test_copies_share_the_load_and_add_their_rates() -> None:
    single, double = (prepared(data_parallel_size=n, api_server_count=4) for n in (1, 2))
    load = closed(64, 256, 1000, 64)
    one, two = single.replay(load).result, double.replay(load).result
    assert two.throughput_output_tokens_per_s > 1.3 * one.throughput_output_tokens_per_s


def test_copies_share_sessions_not_requests() -> None:
    load = load_workload("agents").first(8)
    assert prepared(data_parallel_size=2).replay(load).result.requests == load.first(4).count


def test_a_front_end_that_runs_out_of_processor_delays_first_tokens() -> None:
    slow = Frontend(token_s=0.01)
    assert slow.stream(0.0, 100) == pytest.approx(1.0)
    assert slow.accept(0.5) == pytest.approx(1.0)
    assert Frontend(token_s=0.01, processes=4).stream(0.0, 100) == pytest.approx(0.25)


def test_speculation_changes_the_cost_and_says_what_it_assumes() -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 4}
    found = prepared(speculative_config=spec)
    assert isinstance(found.cost, SpeculativeCost)
    assert any("accepted" in text for text in found.assumptions)
    never = prepared(speculative_config={**spec, "acceptance": 0.0})
    assert isinstance(never.cost, SpeculativeCost)
    assert never.cost.acceptance == 0
    plain, fast = prepared().replay(closed(1, 3, 200, 64)), found.replay(closed(1, 3, 200, 64))
    assert fast.result.tpot_ms.mean < plain.result.tpot_ms.mean  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("gpu", "version", "batched", "seqs", "utilization"),
    [
        ("h100", "0.9.2", 8192, 1024, 0.9),
        ("h100", "0.10.0", 8192, 1024, 0.9),
        ("a100", "0.8.3", 2048, 1024, 0.9),
        ("a100", "0.8.5", 8192, 1024, 0.9),
        ("a100", "0.9.0", 2048, 256, 0.9),
        ("gb10", "0.33.0", 2048, 256, 0.92),
        ("h200", "0.18.0", 8192, 1024, 0.9),
        ("a100", "0.18.0", 2048, 256, 0.9),
        ("b200", "0.28.0", 16384, 1024, 0.92),
        ("rtx 4090", "0.33.0", 2048, 256, 0.92),
    ],
)
def test_vllm_fills_in_its_own_defaults(
    gpu: str, version: str, batched: int, seqs: int, utilization: float
) -> None:
    filled = vllm_defaults(EngineKind("vllm", version), load_hardware(gpu), {"max_model_len": 8192})
    assert filled["max_num_batched_tokens"] == batched
    assert filled["max_num_seqs"] == seqs
    assert filled["gpu_memory_utilization"] == utilization


def test_the_engine_chosen_decides_the_memory_rule() -> None:
    ours, theirs = prepared(), prepared(engine=EngineKind("vllm", "0.12.0"))
    assert ours.budget.rule == "camshaft (cuda)"
    assert theirs.budget.rule == "vllm 0.12.0"
    assert theirs.params.max_num_seqs == 1024
    assert theirs.budget.activation_bytes > 4 * 2**30


def test_releases_whose_sampler_does_not_sort_need_less_memory_and_time() -> None:
    config = {"model": "Qwen/Qwen3-8B"}  # its generation_config.json asks for top-k and top-p
    sorting, since = (
        prepare(
            load_config(config, purpose="inspect"), load_hardware("h100"), engine=EngineKind("vllm", version)
        )
        for version in ("0.16.0", "0.17.0")
    )
    spared = sorting.budget.activation_bytes - since.budget.activation_bytes
    assert spared == pytest.approx(5.45 * 1024 * 151936 * 4, rel=0.01)
    assert isinstance(sorting.cost, StepCost)
    assert isinstance(since.cost, StepCost)
    assert sorting.cost.samples_ms(512) > 3 * since.cost.samples_ms(512)


def test_a_window_aware_engine_holds_more_requests() -> None:
    config = {"model": "openai/gpt-oss-20b", "max_model_len": 16000, "max_num_batched_tokens": 1024}
    found = prepare(
        load_config(config, purpose="inspect"), load_hardware("h100"), engine=EngineKind("vllm", "0.18.0")
    )
    setup = found.setup(closed(4, 8, 8000, 100))
    assert setup.params.num_blocks > 1.3 * found.params.num_blocks


@pytest.mark.parametrize(
    ("model", "copies", "whole", "gib"),
    [
        # what each of vLLM's ranks holds: attention, shared experts and tables whole, 1/8 and 1/2 of the experts
        ("deepseek-ai/DeepSeek-V3", 8, True, 95.0),
        ("Qwen/Qwen3-30B-A3B-FP8", 2, True, 15.4),
        ("Qwen/Qwen3-30B-A3B-FP8", 2, False, 15.4),
    ],
)
def test_vllm_spreads_experts_over_its_data_parallel_copies(
    model: str, copies: int, whole: bool, gib: float
) -> None:
    config = {"model": model, "data_parallel_size": copies, "enable_expert_parallel": whole}
    found = prepare(
        load_config(config, purpose="inspect"),
        load_hardware("h200"),
        shape_named(model),
        engine=EngineKind("vllm", "0.18.0"),
    )
    assert found.budget.weights_bytes / 2**30 == pytest.approx(gib, rel=0.03)
    assert found.budget.fits
    assert any("share the experts" in text for text in found.assumptions)
    before = prepare(found.loaded, found.hardware, found.shape, engine=EngineKind("vllm", "0.7.3"))
    assert before.budget.weights_bytes > 1.8 * found.budget.weights_bytes


def test_every_quantisation_that_vllm_names_is_known() -> None:
    """The keys of QUANTIZATION_METHODS of 0.10.0, 0.18.0 and 0.33.0 that state or imply a scheme."""
    for name in (
        "awq", "awq_marlin", "bitsandbytes", "compressed-tensors", "deepspeedfp", "fbgemm_fp8", "fp8",
        "fp8_per_block", "gguf", "gptq", "gptq_marlin", "hqq", "inc", "ipex", "modelopt", "modelopt_fp4",
        "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8", "petit_nvfp4", "ptpc_fp8", "quark", "rtn", "torchao",
    ):  # fmt: skip
        assert prepared(quantization=name).budget.weights_bytes < 0.8 * prepared().budget.weights_bytes
    assert any("FP8" in text for text in prepared(quantization="compressed-tensors").assumptions)


def test_settings_that_no_prediction_reads_are_named() -> None:
    told = prepared(
        engine=EngineKind("vllm", "0.18.0"),
        enable_lora=True,
        lora_modules="a=b",
        host="0.0.0.0",
        max_num_seqs=64,
    ).assumptions
    assert "not modelled: --enable-lora, --lora-modules; the prediction is as if they were not given" in told
    assert not any("not modelled" in text for text in prepared(max_num_seqs=64, port=1).assumptions)


def test_what_starts_only_with_flashinfer_is_taken_to_have_it() -> None:
    """Published runs of these releases, in vLLM's images, start on one H100; a sorting sampler leaves no room."""
    for model, length in (("openai/gpt-oss-120b", 32768), ("Qwen/Qwen3-32B", 24576)):
        loaded = load_config({"model": model, "max_model_len": length}, purpose="inspect")
        found, later = (
            prepare(loaded, load_hardware("h100"), engine=EngineKind("vllm", version))
            for version in ("0.11.0", "0.11.1")
        )
        assert found.budget.fits
        assert not later.budget.fits
        assert any("FlashInfer" in text for text in found.assumptions)
        assert found.turned(max_num_seqs=64).flashinfer
    assert not prepared(engine=EngineKind("vllm", "0.11.0")).flashinfer


def test_offloaded_weights_leave_room_and_cross_the_link_in_every_step() -> None:
    vllm = EngineKind("vllm", "0.18.0")
    plain, lying = prepared(engine=vllm), prepared(engine=vllm, cpu_offload_gb=4)
    assert lying.budget.kv_bytes - plain.budget.kv_bytes == 4 * 2**30
    assert lying.cost.decode_step(1, 100).transfer == pytest.approx(4 * 2**30 / 50e6)  # type: ignore[union-attr]
    assert any("4.0 GiB of each device's weights" in text for text in lying.assumptions)
    everything = prepared(engine=vllm, cpu_offload_gb=400)
    assert everything.budget.weights_bytes == 0
    with pytest.raises(ConfigError, match="cpu_offload_gb"):
        prepared(engine=vllm, cpu_offload_gb="much")


@pytest.mark.parametrize(("version", "as_requests"), [("0.18.0", False), ("0.21.0", True)])
def test_a_measured_cache_of_a_windowed_model_is_kept_to(version: str, as_requests: bool) -> None:
    config = {"model": "openai/gpt-oss-20b", "max_model_len": 65536}
    found = prepare(
        load_config(config, purpose="inspect"), load_hardware("h100"), engine=EngineKind("vllm", version)
    )
    held = found.holding(400_000)
    whole = 400_000 / 65536 * found.budget.one_request_bytes
    expected = whole if as_requests else 400_000 * found.budget.bytes_per_token
    assert whole < 0.8 * 400_000 * found.budget.bytes_per_token
    assert held.budget.kv_bytes == pytest.approx(expected, rel=1e-3)
    assert any("as measured" in text for text in held.assumptions)


def test_every_setting_that_counts_as_modelled_exists() -> None:
    assert {*ServeConfig.model_fields, *vllm_names()} >= MODELLED


def test_a_measured_cache_is_what_the_replay_has_and_turned_knobs_keep_the_difference() -> None:
    found = prepared().holding(40_000)
    assert found.budget.kv_tokens == pytest.approx(40_000, abs=16)
    assert found.setup(MIXED).params.num_blocks == found.budget.num_blocks
    more = found.turned(gpu_memory_utilization=0.97)
    grown = 0.97 - found.settings.gpu_memory_utilization
    added = grown * found.budget.total_bytes / found.budget.bytes_per_token
    assert more.budget.kv_tokens == pytest.approx(40_000 + added, rel=0.01)


def test_the_band_of_another_engine_is_said_to_be_that() -> None:
    assert "of vLLM: this engine was not measured there" in str(prepared().setup(MIXED).error_band["source"])
    own = prepared(engine=EngineKind("vllm", "0.18.0")).setup(MIXED).error_band
    assert "not measured there" not in str(own["source"])


def test_a_release_from_the_future_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.99 is not known"):
        prepared(engine=EngineKind("vllm", "0.99"))


def test_the_start_of_clients_that_all_come_at_once_is_left_out_of_latencies_alone() -> None:
    load = closed(32, 160, {"uniform": [500, 1500]}, {"uniform": [32, 64]})
    whole = prepared(Targets(ttft_ms=400)).replay(load)
    settled = whole.without_start()
    assert settled.from_start == whole.result
    assert whole.result.ttft_ms is not None
    assert settled.result.ttft_ms is not None
    assert settled.result.ttft_ms.p99 < whole.result.ttft_ms.p99 / 2  # 32 prompts wait for each other
    assert settled.result.good_share > whole.result.good_share
    assert settled.result.requests == whole.result.requests == 160
    assert settled.result.throughput_output_tokens_per_s == whole.result.throughput_output_tokens_per_s


@pytest.mark.parametrize("load", [closed(1, 40, 200, 8), closed(24, 24, 200, 8)], ids=["alone", "one each"])
def test_without_such_a_start_nothing_is_left_out(load: Workload) -> None:
    seen = prepared().replay(load)
    assert seen.without_start() is seen


@pytest.mark.parametrize(
    ("knobs", "load"),
    [
        ({}, MIXED),
        ({"policy": "fair"}, MIXED),
        ({"num_gpu_blocks_override": 700}, MIXED),
        ({}, closed(8, 24, 900, 8, shared_prefix_tokens=512)),
    ],
    ids=["plain", "fair", "evicts", "shares"],
)
def test_hashes_that_nobody_looks_for_change_nothing(knobs: dict[str, Any], load: Workload) -> None:
    base = prepared(**knobs)
    quick, slow = replay(base.setup(load), load), _Simulation(base.setup(load), load).run()
    assert quick.result == slow.result
    assert (quick.log.columns == slow.log.columns).all()
    assert bool(slow.result.preemptions) == ("num_gpu_blocks_override" in knobs)


def test_an_eviction_or_two_among_hundreds_are_not_replayed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They find none of their own blocks again, which is to change no figure much."""
    load = MIXED.first(400)
    base = prepared(num_gpu_blocks_override=1500)
    slow = _Simulation(base.setup(load), load).run()
    assert 0 < (slow.result.preemptions or 0) <= 4
    quick = replay(base.setup(load), load)
    assert quick.result.kv is not None
    assert quick.result.kv.hit_rate == 0.0
    assert quick.result.duration_s == pytest.approx(slow.result.duration_s, rel=0.01)


def test_a_refusal_within_the_error_of_the_arithmetic_says_so() -> None:
    """gpt-oss-120b at its whole context misses a hundredth of the memory; half the utilisation is no doubt."""
    for utilization, doubtful in ((0.9, True), (0.5, False)):
        config = {"model": "openai/gpt-oss-120b", "gpu_memory_utilization": utilization}
        big = prepare(load_config(config, purpose="inspect"), load_hardware("h100"))
        with pytest.raises(CapacityError) as caught:
            big.replay(MIXED)
        assert ("within the error of this arithmetic" in str(caught.value)) is doubtful

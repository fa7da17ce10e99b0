"""Every rule's own examples, the packed forms, and what evaluation promises about unknown facts."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.diagnostics.compat.releases.table import load
from camshaft.diagnostics.compat.releases.versions import parse, versions
from camshaft.diagnostics.compat.rules import pack as rulepack
from camshaft.diagnostics.compat.rules.conditions import names
from camshaft.diagnostics.compat.rules.evaluate import RuleHit, evaluate, sentence
from camshaft.diagnostics.compat.rules.evidence import load_index, records
from camshaft.diagnostics.compat.rules.pack import Example, Source
from camshaft.diagnostics.compat.rules.records import RULES_FOLDER
from camshaft.diagnostics.compat.rules.resolvers import parser_defaults
from camshaft.diagnostics.compat.rules.scope import Facts
from camshaft.diagnostics.cost.devices import find_device

SOURCES = rulepack.sources("vllm")
CODES = [source.rule.code for source in SOURCES]
RELEASES = [str(version) for version in versions("vllm")]


def run(example: Example) -> list[RuleHit]:
    version = parse(example.version)
    device = find_device(example.device) if example.device else None
    facts = Facts(example.flags, example.env, example.model, device, parser_defaults("vllm", version))
    return evaluate("vllm", version, facts)


def hits(version: str, **facts: object) -> dict[str, RuleHit]:
    example = msgspec.convert({"version": version, **facts}, Example)
    return {hit.rule.code: hit for hit in run(example)}


@pytest.mark.parametrize("source", SOURCES, ids=CODES)
def test_examples(source: Source) -> None:
    failing = {hit.rule.code for hit in run(source.examples.fails) if hit.certain}
    assert source.rule.code in failing
    assert source.rule.code not in {hit.rule.code for hit in run(source.examples.passes)}


@pytest.mark.parametrize("source", SOURCES, ids=CODES)
def test_records_are_sound(source: Source) -> None:
    """Ranges are in order and between known releases; evidence, sentence and flags have their form."""
    rule = source.rule
    previous = parse("0.0.0")
    for where in rule.versions:
        assert where.since in RELEASES
        assert where.until is None or where.until in RELEASES
        assert parse(where.since) > previous
        previous = parse(where.until or "99.0.0")
        assert parse(where.since) <= previous
        assert re.fullmatch(r"vllm/[\w/]+\.py:\d+", where.evidence)
        sentence = where.consequence or rule.consequence
        assert sentence.endswith((".", "!")), sentence
        for flag in where.flags or rule.flags:
            assert any(load("vllm", v).find(flag) for v in map(parse, RELEASES) if rule.held(v)), flag


def test_codes_are_unique() -> None:
    assert len(set(CODES)) == len(CODES)


@pytest.mark.parametrize("engine", rulepack.engines())
def test_packed_form_is_current(engine: str) -> None:
    packed = (RULES_FOLDER / f"{engine}.json").read_bytes()
    assert packed == rulepack.pack(engine), f"run: {rulepack.COMMAND}"


def test_every_name_in_a_condition_means_something() -> None:
    """A misspelt name would be null for ever, and its rule silent."""
    words = rulepack.words("vllm", "terms").keys() | rulepack.words("vllm", "defaults").keys() | {"usage"}
    flags = {flag.dest for text in RELEASES for flag in load("vllm", parse(text)).flags.values()}
    spaces = {"env", "model", "device", "backend", "memory"}
    conditions = [source.rule.when for source in SOURCES]
    conditions += [where.when for source in SOURCES for where in source.rule.versions if where.when]
    conditions += [node for source in SOURCES for node in source.rule.culprits.values()]
    for kind in ("terms", "defaults"):
        conditions += [part.value for parts in rulepack.words("vllm", kind).values() for part in parts]
    for name in {name for condition in conditions for name in names(condition)}:
        first, _, rest = name.partition(".")
        flag = rest.partition(".")[0] if first == "given" else first
        assert first in spaces or flag in flags or name in words, name


def test_evidence_index_agrees_with_what_was_read() -> None:
    """The place read by eye at the start of each range is where the fingerprint leads, in the recorded release."""
    index = load_index("vllm")
    assert set(index.releases) >= set(RELEASES)
    for source in SOURCES:
        recorded = records(index, source.rule.code)
        for where in source.rule.versions:
            assert recorded[where.since].text == where.evidence, source.rule.code


def test_evidence_names_the_release_asked_for() -> None:
    hit = hits("0.33.0", flags={"max_num_batched_tokens": 1, "max_num_seqs": 2})["VLLM-SC-02"]
    assert hit.evidence == "0.33.0 vllm/config/scheduler.py:332"


def test_an_unknown_device_asks_only_where_the_flag_is_given() -> None:
    hit = hits("0.18.0", flags={"dtype": "bfloat16"})["VLLM-DT-01"]
    assert (hit.certain, hit.missing, hit.severity) == (False, ("device",), "info")
    assert "VLLM-DT-01" not in hits("0.18.0")


def test_an_unknown_model_fact_is_named() -> None:
    flags = {"decode_context_parallel_size": 2, "tensor_parallel_size": 8}
    hit = hits("0.18.0", flags=flags)["VLLM-KV-20"]
    assert hit.missing == ("model.num_key_value_heads", "model.use_mla")


@pytest.mark.parametrize("release", RELEASES)
def test_a_bare_server_meets_no_rule(release: str) -> None:
    assert not hits(release, flags={"model": "org/model"})
    assert not hits(release, flags={"model": "org/model"}, device="H100")


def test_a_hit_names_the_culprit_among_its_flags() -> None:
    flags = {"kv_cache_dtype": "fp8", "quantization": "awq", "dtype": "bfloat16"}
    assert hits("0.9.2", flags=flags, device="A100")["VLLM-V1-02"].flags == ("--kv-cache-dtype",)


def test_ngram_runs_on_the_v1_runner_until_0_31() -> None:
    """The runner decides which checks a method meets (async scheduling, inert sampling parameters)."""
    flags = {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "override_generation_config": {"min_p": 0.1},
    }
    inert = [text for text in RELEASES if "VLLM-SD-29" in hits(text, flags=flags)]
    assert (inert[0], inert[-1]) == ("0.17.0", "0.31.0")


def test_messages_show_the_values() -> None:
    model = {"max_position_embeddings": 131072}
    flags = {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}
    hit = hits("0.25.0", flags=flags, model=model)["VLLM-SC-01"]
    assert "(8192)" in hit.message
    assert "(131072)" in hit.message
    assert hit.fix is not None
    assert "--max-model-len 8192" in hit.fix


# The two published descriptions of 0.18.0 contradict each other on speculation with chunked prefill and prefix
# caching; its code allows every method with both, and its draft-model speculation works.
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram", "ngram_gpu", "mtp"])
def test_speculation_with_chunked_prefill_starts_at_0_18(method: str) -> None:
    config = {"method": method, "model": "org/draft", "num_speculative_tokens": 3}
    flags = {"speculative_config": config, "enable_chunked_prefill": True, "enable_prefix_caching": True}
    found = hits("0.18.0", flags=flags, device="H100")
    assert not [hit.rule.code for hit in found.values() if hit.certain and hit.would_stop]


def test_draft_model_speculation_by_release() -> None:
    flags = {
        "speculative_config": {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 3}
    }
    refused = [text for text in RELEASES if "VLLM-SD-01" in hits(text, flags=flags)]
    assert refused[0] == "0.10.0"
    assert refused[-1] == "0.14.1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drop --x", "Drop --x."),
        ("--x 3 keeps it", "--x 3 keeps it."),
        ("max_num_seqs is small.", "max_num_seqs is small."),
        ("one of: a; b", "One of: a; b."),
    ],
)
def test_sentences(text: str, expected: str) -> None:
    assert sentence(text) == expected


def test_terms_are_in_order_and_between_known_releases() -> None:
    for kind in ("terms", "defaults"):
        for word, parts in rulepack.words("vllm", kind).items():
            previous = parse("0.0.0")
            for part in parts:
                assert part.since is None or part.since in RELEASES, word
                assert part.until is None or part.until in RELEASES, word
                assert part.since is None or parse(part.since) > previous, word
                previous = parse(part.until or "99.0.0")


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 4096),
    st.floats(allow_nan=True),
    st.sampled_from(["auto", "fp8", "ngram", "ray", ""]),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(
        st.sampled_from(["method", "model", "num_speculative_tokens", "mode", "backend"]), st.integers()
    ),
)
NAMES = sorted({flag.lstrip("-").replace("-", "_") for s in SOURCES for flag in s.rule.flags})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    release=st.sampled_from(RELEASES),
    flags=st.dictionaries(st.sampled_from(NAMES), ODD, max_size=8),
    model=st.dictionaries(
        st.sampled_from(["vocab_size", "num_attention_heads", "model_type", "rope_scaling"]), ODD
    ),
    device=st.sampled_from([None, "H100", "T4", "MI300X", "CPU"]),
)
def test_no_configuration_crashes_the_evaluation(
    release: str, flags: object, model: object, device: object
) -> None:
    for hit in hits(release, flags=flags, model=model, device=device).values():
        assert hit.message
        assert hit.certain or hit.missing

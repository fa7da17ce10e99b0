"""Every rule's own examples, the packed form, and what evaluation promises about unknown facts."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.compat import rulepack
from camshaft.diagnostics.compat.devices import find_device
from camshaft.diagnostics.compat.resolvers import parser_defaults
from camshaft.diagnostics.compat.rulepack import Example, Source
from camshaft.diagnostics.compat.rules import RULES_FOLDER, Facts, RuleHit, evaluate
from camshaft.diagnostics.compat.versions import parse

SOURCES = rulepack.sources("vllm")


def run(example: Example) -> list[RuleHit]:
    version = parse(example.version)
    device = find_device(example.device) if example.device else None
    facts = Facts(example.flags, example.env, example.model, device, _defaults(version))
    return evaluate("vllm", version, facts)


def _defaults(version):
    try:
        return parser_defaults("vllm", version)
    except Exception:
        return {
            "pipeline_parallel_size": 1,
            "tensor_parallel_size": 1,
            "enable_lora": False,
            "dtype": "auto",
        }.get


def certain(example: Example) -> set[str]:
    return {hit.rule.code for hit in run(example) if hit.certain}


@pytest.mark.parametrize("source", SOURCES, ids=[s.rule.code for s in SOURCES])
def test_examples(source: Source) -> None:
    assert source.rule.code in certain(source.examples.fails)
    assert source.rule.code not in {hit.rule.code for hit in run(source.examples.passes)}


@pytest.mark.parametrize("engine", rulepack.engines())
def test_packed_form_is_current(engine: str) -> None:
    packed = (RULES_FOLDER / f"{engine}.json").read_bytes()
    assert packed == rulepack.pack(engine), f"run: {rulepack.COMMAND}"

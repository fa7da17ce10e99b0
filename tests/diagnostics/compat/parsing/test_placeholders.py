"""Placeholders are unknown values, neither right nor wrong: of an option, and of a key within JSON."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.fix.files import fix_all
from camshaft.diagnostics.compat.inputs.read import read_text
from camshaft.diagnostics.compat.run import check_all

PLACEHOLDERS = ["$N", "${N}", "$(N)", "{{ .Values.n }}", "<YOUR_N>", "`n`"]


def verdicts(text: str, name: str) -> list[Result]:
    return check_all(read_text(text, name), targets=["0.33.0"])


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "vllm serve m --OPTION '{}'"),
        ("a.yaml", "model: m\nOPTION: '{}'\n"),
        ("a.yaml", "containers: [{{image: 'vllm/vllm-openai', args: ['--OPTION', '{}']}}]\n"),
        ("a.yaml", 'services: {{a: {{image: vllm/vllm-openai, command: ["--OPTION={}"]}}}}\n'),
        ("a.py", 'from vllm import LLM\nLLM("m", OPTION="{}")\n'),
    ],
)
@pytest.mark.parametrize("option", ["max-num-seqs", "dtype", "quantization"])
def test_a_value_that_is_a_placeholder_is_unknown(
    name: str, text: str, option: str, placeholder: str
) -> None:
    key = option.replace("-", "_") if name == "a.py" else option
    (result,) = verdicts(text.format(placeholder).replace("OPTION", key), name)
    assert [f.message for f in result.findings if f.severity == "error"] == []
    assert any(f"--{option}" in note for note in result.notes)


@pytest.mark.parametrize("placeholder", [*PLACEHOLDERS, "${N:-3}"])
@pytest.mark.parametrize("quotes", ["", '"'])
def test_a_placeholder_within_json_leaves_the_other_keys_to_be_judged(placeholder: str, quotes: str) -> None:
    value = f'{{"method": "ngram", "num_speculative_tokens": {quotes}{placeholder}{quotes}, "nonsense": 1}}'
    (result,) = verdicts(f"vllm serve m --speculative-config '{value}'", "a.sh")
    assert [(f.code, "nonsense" in f.message) for f in result.findings] == [("FL-16", True)]
    assert any("--speculative-config.num_speculative_tokens" in note for note in result.notes)


def test_a_known_key_beside_a_variable_is_judged_in_double_quotes() -> None:
    text = r'vllm serve m --speculative-config "{\"model\": \"$M\", \"num_speculative_tokens\": 0}"'
    (result,) = verdicts(text, "a.sh")
    assert [f.code for f in result.findings] == ["FL-21"]


@pytest.mark.parametrize("word", ["<think>", "re:.*lm_head$", "a < b"])
def test_text_that_only_looks_like_a_placeholder_is_no_note(word: str) -> None:
    (result,) = verdicts(f'vllm serve m --reasoning-config \'{{"reasoning_start_str": "{word}"}}\'', "a.sh")
    assert (result.findings, result.notes) == ((), ())


def test_json_that_cannot_be_read_is_an_error_whatever_its_texts_look_like() -> None:
    (result,) = verdicts('vllm serve m --reasoning-config \'{"reasoning_start_str": "<think>",, }\'', "a.sh")
    assert [f.code for f in result.findings] == ["FL-08"]


def test_what_is_open_stays_open_in_the_option_that_replaces_others() -> None:
    text = 'vllm serve m --speculative-model "$M" --num-speculative-tokens $N\n'
    (result,) = verdicts(text, "a.sh")
    wanted = r'Use --speculative-config "{\"model\": \"$M\", \"num_speculative_tokens\": $N}".'
    assert {finding.fix for finding in result.findings} == {wanted}
    (fixed,) = fix_all(read_text(text, "a.sh"), lambda c: check_all([c], targets=["0.33.0"])[0], unsafe=True)
    assert (fixed.plan.texts, len(fixed.refused)) == ({}, 1)


def test_an_edit_that_holds_a_name_of_python_is_open() -> None:
    text = 'from vllm import LLM\nLLM("m", speculative_model="a", num_speculative_tokens=tokens)\n'
    (result,) = verdicts(text, "a.py")
    edits = [edit for finding in result.findings for edit in finding.edits if edit.kind == "set"]
    assert {(edit.flag, edit.open) for edit in edits} == {("--speculative-config", True)}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('"$R"', r'"{\"rope_scaling\": $R}"'),
        ("'{rope_type:yarn}'", r'"{\"rope_scaling\": ...}"'),
        ('\'{"rope_type": "yarn"}\'', '\'{"rope_scaling": {"rope_type": "yarn"}}\''),
    ],
)
def test_an_object_that_moves_is_told_as_far_as_it_can_be_read(given: str, wanted: str) -> None:
    (result,) = check_all(read_text(f"vllm serve m --rope-scaling {given}\n", "a.sh"), targets=["0.13.0"])
    assert result.findings[0].fix == f"Use --hf-overrides {wanted}."


@pytest.mark.parametrize("release", ["0.8.5", "0.18.0", "0.33.0"])
@pytest.mark.parametrize("option", ["speculative-config", "kv-transfer-config", "compilation-config"])
def test_the_keys_of_an_object_that_nobody_knows_are_unknown(option: str, release: str) -> None:
    (result,) = check_all(read_text(f'vllm serve m --{option} "$X"\n', "a.sh"), targets=[release])
    assert result.starts is not False
    assert all(f.depends_on for f in result.findings if f.severity != "warning")

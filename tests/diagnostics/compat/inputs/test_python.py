from __future__ import annotations

import pytest

from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.inputs.base import Configuration, UnreadableInput
from camshaft.diagnostics.compat.inputs.read import read_text
from camshaft.diagnostics.compat.run import check_all


def read(text: str) -> list[Configuration]:
    return read_text(text, "serve.py")


def judged(text: str, target: str, start: str | None = None) -> Result:
    (result,) = check_all(read(text), targets=[target], start=start)
    return result


def test_keywords_become_settings_with_their_places() -> None:
    (found,) = read(
        '# é\nfrom vllm import LLM\nllm = LLM("m",\n    tensor_parallel_size=2, enforce_eager=True)\n'
    )
    assert [(entry.key, entry.value) for entry in found.entries] == [
        ("model", "m"),
        ("tensor-parallel-size", 2),
        ("enforce-eager", True),
    ]
    assert [str(entry.place) for entry in found.entries] == ["serve.py:3:11", "serve.py:4:5", "serve.py:4:29"]
    assert found.usage == "llm"


def test_columns_count_characters_and_not_bytes() -> None:
    (found,) = read('import vllm\nengine = vllm.LLM("é", seed=1)\n')
    assert str(found.entries[1].place) == "serve.py:2:24"


def test_names_assigned_once_are_followed_and_others_are_unknown() -> None:
    (found,) = read(
        "from vllm import EngineArgs\n"
        "SIZE = 4\nextra = dict(seed=SIZE, **{})\nmore = {'dtype': 'auto'}\n"
        "for port in range(3): pass\n"
        "EngineArgs(model=name, max_num_seqs=SIZE, seed=port, **more, **extra)\n"
    )
    known = {entry.key: (entry.value, entry.opaque) for entry in found.entries}
    assert known == {
        "model": ("name", True),
        "max-num-seqs": (4, False),
        "seed": ("port", True),
        "dtype": ("auto", False),
    }
    assert found.unread == ("**extra",)


def test_variables_of_the_script_are_those_of_the_engine() -> None:
    (found,) = read(
        "import os\nfrom vllm import LLM\n"
        "os.environ['VLLM_USE_V1'] = '0'\nos.environ.setdefault('A', b())\nos.environ.update({'C': '1'})\n"
        "LLM('m')\n"
    )
    assert {name: setting.value for name, setting in found.env.items()} == {
        "VLLM_USE_V1": "0",
        "A": None,
        "C": "1",
    }


def test_commands_in_lists_and_texts_are_found() -> None:
    found = read(
        "import os, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-m', 'vllm.entrypoints.openai.api_server', '--model', m, '--seed', '1'])\n"
        "os.system('vllm serve q --port 80')\n"
    )
    assert [[word.text for word in item.words] for item in found] == [
        ["--model", "m", "--seed", "1"],
        ["q", "--port", "80"],
    ]
    assert [item.label for item in found] == ["serve.py:2", "serve.py:3"]
    assert [word.opaque for word in found[0].words] == [False, True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "x = (",
        "x = 1",
        "from other import LLM\nLLM('m', swap_space=4)",
        '"""vllm serve m --port 1"""\n',
        "log.info('start it by vllm serve m --port 1')",
        "\x00",
        "from vllm import SamplingParams\nSamplingParams(n=2)",
    ],
)
def test_a_script_that_starts_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnreadableInput, match=r"serve\.py"):
        read(text)


def test_a_keyword_that_left_is_found_at_its_place() -> None:
    result = judged("from vllm import LLM\nllm = LLM(model='m', swap_space=4)\n", "0.33.0", "0.17.0")
    assert result.starts is False
    (finding,) = [finding for finding in result.findings if finding.stops]
    assert (finding.flags, str(finding.place)) == (("--swap-space",), "serve.py:2:22")
    assert not any("--allowed-origins" in finding.flags for finding in result.findings)


def test_values_are_taken_as_they_are_typed() -> None:
    text = (
        "from vllm import LLM\n"
        "LLM('m', enable_prefix_caching=False, trust_remote_code=True, quantization=None,\n"
        "    limit_mm_per_prompt={'image': 2}, compilation_config={'level': 3}, hf_overrides={})\n"
    )
    for target in ("0.6.6", "0.8.5", "0.9.2"):
        found = [f for f in judged(text, target).findings if f.change in ("value_syntax", "silently_ignored")]
        assert found == [], target


def test_a_setting_of_the_http_server_is_no_argument_of_the_engine() -> None:
    result = judged("from vllm import LLM\nLLM('m', api_key='x')\n", "0.33.0")
    assert [f.flags for f in result.findings if f.stops] == [("--api-key",)]


def test_what_a_mapping_holds_leaves_the_verdict_open() -> None:
    result = judged("from vllm import LLM\nLLM('m', **options)\n", "0.33.0")
    assert result.starts is None
    assert result.depends_on == ("**options",)


@pytest.mark.parametrize("target", ["0.6.6", "0.8.5", "0.9.2", "0.11.0", "0.33.0"])
def test_a_compilation_level_is_taken_by_the_offline_class(target: str) -> None:
    assert judged("from vllm import LLM\nLLM('m', compilation_config=3)\n", target).starts is True


def test_a_compilation_level_is_refused_by_the_engine_s_arguments() -> None:
    text = "from vllm import EngineArgs\nEngineArgs('m', compilation_config=3)\n"
    assert judged(text, "0.9.1").starts is True
    assert judged(text, "0.11.0").starts is False


def test_a_script_without_a_name_is_known_by_its_imports() -> None:
    (found,) = read_text("from vllm import LLM\nLLM('m', seed=1)\n", "standard input")
    assert [entry.key for entry in found.entries] == ["model", "seed"]


def test_a_shell_text_that_holds_a_script_is_read_as_shell() -> None:
    text = "python - <<EOF\nfrom vllm import LLM\nEOF\nvllm serve m --seed 1\n"
    (found,) = read_text(text, "standard input")
    assert [word.text for word in found.words] == ["m", "--seed", "1"]


def test_what_else_of_vllm_a_script_leans_on_is_named() -> None:
    text = (
        "from vllm import LLM, SamplingParams\nfrom vllm.sampling_params import GuidedDecodingParams\n"
        "LLM('m')\nLLM('n')\nSamplingParams(best_of=2, guided_decoding=GuidedDecodingParams(choice=['a']))\n"
    )
    first, second = read_text(text, "a.py")
    (note,) = first.notes
    assert note == (
        "not checked: imports from vllm.sampling_params, arguments of SamplingParams, arguments of GuidedDecodingParams"
    )
    assert not second.notes
    assert not read_text(
        "from vllm import LLM, SamplingParams\nLLM('m').generate('x', SamplingParams())\n", "a.py"
    )[0].notes


@pytest.mark.parametrize("given", ["a", "**a", "seed=a", "**{'seed': a}"])
def test_names_that_stand_for_each_other_are_unknown(given: str) -> None:
    (found,) = read_text(f"from vllm import LLM\na = b\nb = a\nLLM({given})\n", "a.py")
    assert all(entry.opaque for entry in found.entries)

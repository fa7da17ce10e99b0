"""Fixes: what the target refuses is rewritten, and everything a person wrote around it stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.diagnostics.compat.checks.findings import Result
from camshaft.diagnostics.compat.fix.cut import Changes
from camshaft.diagnostics.compat.fix.files import fix_all
from camshaft.diagnostics.compat.fix.plan import CannotFix, Plan, plan
from camshaft.diagnostics.compat.inputs.base import Configuration
from camshaft.diagnostics.compat.inputs.read import read_command, read_path, read_text
from camshaft.diagnostics.compat.run import check_all

SETTINGS = """\
# our production server
model: Qwen/Qwen3-8B

# memory
swap-space: 6   # GiB a GPU
gpu-memory-utilization: 0.90
# how many at once
max-num-seqs: 64
enable-prefix-caching: false  # benchmark
served-model-name: "qwen"
"""


def judged(configuration: Configuration, target: str) -> Result:
    (result,) = check_all([configuration], targets=[target])
    return result


def fixed(text: str, target: str, unsafe: bool = False, name: str = "vllm.yaml") -> tuple[str, Plan]:
    (configuration,) = read_text(text, name)
    made = plan(configuration, judged(configuration, target), unsafe)
    return made.texts.get(name, (text, text))[1], made


def fixed_command(command: str, target: str, unsafe: bool = False) -> str:
    (configuration,) = read_command(command)
    made = plan(configuration, judged(configuration, target), unsafe)
    return made.texts.get("command line", (command, command))[1]


def test_settings_keep_comments_order_and_quotes() -> None:
    new, made = fixed(SETTINGS, "0.18.0")
    assert new == SETTINGS.replace("swap-space: 6   # GiB a GPU\n", "").replace(
        "enable-prefix-caching: false  # benchmark", "no-enable-prefix-caching: true  # benchmark"
    )
    assert "-swap-space: 6" in made.diff()


def test_fixed_settings_have_nothing_left_to_fix() -> None:
    new, _ = fixed(SETTINGS, "0.18.0")
    again, made = fixed(new, "0.18.0")
    assert again == new
    assert made.diff() == ""


@pytest.mark.parametrize(
    ("command", "target", "expected"),
    [
        ("vllm serve m --swap-space 4 --port 1", "0.18.0", "vllm serve m --port 1"),
        ("vllm serve m --port 1 --swap-space=4", "0.18.0", "vllm serve m --port 1"),
        ("vllm serve m --enable-chunked-prefill=False", "0.11.0", "vllm serve m --no-enable-chunked-prefill"),
        (
            "vllm serve m --enable-chunked-prefill False -tp 2",
            "0.11.0",
            "vllm serve m --no-enable-chunked-prefill -tp 2",
        ),
        ("vllm serve m \\\n  --swap-space 4 \\\n  --port 1\n", "0.18.0", "vllm serve m \\\n  --port 1\n"),
        ("vllm serve m \\\n  --port 1 \\\n  --swap-space 4\n", "0.18.0", "vllm serve m \\\n  --port 1\n"),
        ("vllm serve m --task embed", "0.13.0", "vllm serve m --runner pooling --convert embed"),
        (
            "vllm serve m --worker-use-ray -tp 2",
            "0.9.2",
            "vllm serve m --distributed-executor-backend ray -tp 2",
        ),
        (
            "vllm serve m --speculative_model [ngram] --num_speculative_tokens 5 --ngram-prompt-lookup-max 4 --port 1",
            "0.18.0",
            "vllm serve m --speculative-config "
            '\'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}\' --port 1',
        ),
        (
            'vllm serve m --rope-scaling \'{"rope_type": "yarn"}\' --hf-overrides \'{"a": 1}\'',
            "0.18.0",
            'vllm serve m --hf-overrides \'{"rope_scaling": {"rope_type": "yarn"}, "a": 1}\'',
        ),
        ("vllm serve m --gpu-memory-util 0.9", "0.18.0", "vllm serve m --gpu-memory-utilization 0.9"),
    ],
)
def test_commands(command: str, target: str, expected: str) -> None:
    assert fixed_command(command, target) == expected
    assert judged(read_command(expected)[0], target).starts


def test_script_with_variables() -> None:
    script = '#!/bin/sh\nARGS="--swap-space 4 --seed 1"  # keep\nvllm serve m $ARGS --port 1\n'
    new, _ = fixed(script, "0.18.0", name="run.sh")
    assert new == script.replace("--swap-space 4 ", "")


MANIFEST = """\
kind: Pod
spec:
  containers:
  - name: vllm   # the server
    image: vllm/vllm-openai:v0.17.0
    args:
    - --model=m
    - --swap-space   # gone
    - "4"
    - --port=80
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MANIFEST, MANIFEST.replace('    - --swap-space   # gone\n    - "4"\n', "")),
        (
            'kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args: ["--model", "m", "--swap-space", "4"]\n',
            'kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args: ["--model", "m"]\n',
        ),
        (
            "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    command: [sh, -c]\n    args:\n    - |\n"
            "      set -e\n      vllm serve m \\\n        --swap-space 4 \\\n        --port 80\n",
            "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    command: [sh, -c]\n    args:\n    - |\n"
            "      set -e\n      vllm serve m \\\n        --port 80\n",
        ),
    ],
)
def test_manifests(text: str, expected: str) -> None:
    new, _ = fixed(text, "0.18.0", name="pod.yaml")
    assert new == expected


DOCKERFILE = "FROM vllm/vllm-openai:v0.10.0\n"
POD = "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n"
LISTS = {
    "Dockerfile": DOCKERFILE + "CMD [@]\n",
    "Containerfile": DOCKERFILE + 'ENTRYPOINT ["vllm", "serve", "m", @]\n',
    "pod.yaml": POD + "    args: [@]\n",
    "pod.json": '{"kind": "Pod", "spec": {"containers": [{"image": "vllm/vllm-openai", "args": [@]}]}}',
}
GONE = (["--swap-space=4"], ["--swap-space", "4"], ["--num-scheduler-steps", "8"], ["--use-v2-block-manager"])
STAYS = (["--model", "m"], ["--max-num-seqs", "64"], ["--enable-lora"], ['--hf-overrides={"a": [1, 2]}'])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.permutations([*GONE, *STAYS]).map(lambda options: options[:5]),
    st.sampled_from([", ", ",", " , ", ",\n      ", "\n      , "]),
    st.sampled_from(sorted(LISTS)),
)
def test_an_item_of_a_list_goes_with_its_comma(options: list[list[str]], comma: str, name: str) -> None:
    docker = name.endswith("file")
    before, after = LISTS[name].split("@")
    items = [json.dumps(word) for option in options for word in option]
    listed = (comma.replace("\n", " \\\n") if docker else comma).join(items)
    new, _ = fixed(before + listed + after, "0.33.0", name=name)
    left = new.removeprefix(before).removesuffix(after)
    kept = [word for option in options if option in STAYS for word in option]
    assert json.loads(f"[{left}]".replace("\\\n", "")) == kept
    assert (new[: len(before)], new[-len(after) :]) == (before, after)
    assert not [line for line in new.splitlines() if not line.strip(" ,\\")]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ('[{name: VLLM_USE_V1, value: "1"}, {name: HF_HOME, value: /x}]', "[{name: HF_HOME, value: /x}]"),
        ("[{name: HF_HOME, value: /x}, {value: '1', name: VLLM_USE_V1}]", "[{name: HF_HOME, value: /x}]"),
        ("[{name: VLLM_USE_V1, value: '1'}]", "[]"),
        ("{VLLM_USE_V1: 1, HF_HOME: /x}", "{HF_HOME: /x}"),
    ],
)
def test_a_variable_of_a_flow_list_goes_whole(env: str, expected: str) -> None:
    text = POD + '    env: {}\n    args: ["--model", "m", "--num-scheduler-steps", "8"]\n'
    new, _ = fixed(text.replace("{}", env), "0.33.0", name="pod.yaml")
    assert new == text.replace("{}", expected).replace(', "--num-scheduler-steps", "8"', "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'CMD ["--model", "m", "--guided-decoding-backend", "xgrammar"]\n',
            'CMD ["--model", "m", "--structured-outputs-config={\\"backend\\": \\"xgrammar\\"}"]\n',
        ),
        (
            'ENTRYPOINT ["sh", "-c", "vllm serve m --swap-space 4"]\n',
            'ENTRYPOINT ["sh", "-c", "vllm serve m"]\n',
        ),
    ],
)
def test_what_is_written_into_an_exec_form_is_json(text: str, expected: str) -> None:
    new, _ = fixed(DOCKERFILE + text, "0.33.0", name="Dockerfile")
    assert new == DOCKERFILE + expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LLM('m', swap_space=4)", "LLM('m')"),
        ("LLM(swap_space=4, model='m', num_scheduler_steps=8)", "LLM(model='m')"),
        (
            "LLM(\n    model='m',\n    swap_space=4,  # GiB\n    seed=1,\n)",
            "LLM(\n    model='m',\n    seed=1,\n)",
        ),
        ("LLM('m', **dict(swap_space=4, seed=1))", "LLM('m', **dict(seed=1))"),
        (
            "KW = {\n    'seed': 1,\n    'swap_space': 4,\n}\nLLM('m', **KW)",
            "KW = {\n    'seed': 1,\n}\nLLM('m', **KW)",
        ),
        ("LLM('m', task='embed', seed=1)", """LLM('m', runner="pooling", convert="embed", seed=1)"""),
        (
            "LLM('m', guided_decoding_backend='xgrammar', swap_space=4)",
            """LLM('m', structured_outputs_config={"backend": "xgrammar"})""",
        ),
    ],
)
def test_a_keyword_of_python_goes_with_its_comma(text: str, expected: str) -> None:
    new, _ = fixed(f"from vllm import LLM\n{text}\n", "0.33.0", name="a.py")
    assert new == f"from vllm import LLM\n{expected}\n"


@pytest.mark.parametrize(
    ("text", "expected", "left"),
    [
        ("LLM('m', seed=f(), swap_space=4, **KW)", "LLM('m', seed=f(), **KW)", None),
        (
            "K = dict(swap_space=4)\nprint(K)\nLLM('m', num_scheduler_steps=8, **K)",
            "K = dict(swap_space=4)\nprint(K)\nLLM('m', **K)",
            "--swap-space",
        ),
        (
            "EngineArgs('m', guided_decoding_backend='xgrammar', swap_space=4)",
            "EngineArgs('m', guided_decoding_backend='xgrammar')",
            "--structured-outputs-config",
        ),
        ("LLM('m', **{'task': 'embed', 'swap_space': 4})", "LLM('m', **{'task': 'embed'})", "--runner"),
    ],
)
def test_what_can_be_fixed_of_python_is(text: str, expected: str, left: str | None) -> None:
    new, made = fixed(f"import vllm\n{text}\n", "0.33.0", name="a.py")
    assert new == f"import vllm\n{expected}\n"
    assert len(made.refused) == (left is not None)
    assert all(left in why and "by hand" in why for why in made.refused if left)


def test_an_edit_that_leaves_more_than_it_should_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Changes, "texts", lambda changes: {"Dockerfile": ("", f'{DOCKERFILE}CMD ["--model", "m", "x"]')}
    )
    with pytest.raises(CannotFix, match="same server"):
        fixed(f'{DOCKERFILE}CMD ["--model", "m", "--swap-space", "4"]\n', "0.33.0", name="Dockerfile")


def test_unsafe_fixes_are_left_unless_asked_for() -> None:
    text = "model: m\nquantization: auto-round\n"
    new, made = fixed(text, "0.15.0")
    assert new == text
    assert [edit.flag for edit in made.left] == ["--quantization"]
    new, _ = fixed(text, "0.15.0", unsafe=True)
    assert new == "model: m\nquantization: inc\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{model: m, swap-space: 4, seed: 1}\n", "{model: m, seed: 1}\n"),
        ("model: m\r\nswap-space: 4\r\nseed: 1\r\n", "model: m\r\nseed: 1\r\n"),
        ('model: m\n"swap-space": 4 # c\nseed: 1', "model: m\nseed: 1"),
        ("model: m\ntask: embed\n# end\n", "model: m\nrunner: pooling\nconvert: embed\n# end\n"),
        ("{model: m, task: embed}\n", "{model: m, runner: pooling, convert: embed}\n"),
        (
            "model: m\nspeculative_model: '[ngram]'\nnum_speculative_tokens: 5\nngram_prompt_lookup_max: 4\n",
            "model: m\nspeculative_config: "
            """'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'\n""",
        ),
        (
            "model: m\nguided-decoding-backend: xgrammar  # fast\nhf-overrides: {a: 1}\n",
            'model: m\nstructured-outputs-config: \'{"backend": "xgrammar"}\'  # fast\nhf-overrides: {a: 1}\n',
        ),
        ("model: m\nlora-modules:\n- a=b\n# c\nswap-space: 4\n", "model: m\nlora-modules:\n- a=b\n# c\n"),
    ],
)
def test_settings_of_every_shape(text: str, expected: str) -> None:
    new, _ = fixed(text, "0.18.0", unsafe=True)
    assert new == expected


@pytest.mark.parametrize(
    "target", ["0.13.0", "0.18.0"]
)  # the loader of 0.13.0 hands a mapping on as Python prints it
def test_a_mapping_is_moved_as_it_is_written(target: str) -> None:
    new, _ = fixed("model: m\nrope-scaling: {rope_type: yarn, factor: 4.0}\nseed: 1\n", target)
    assert list(yaml.safe_load(new)) == ["model", "hf-overrides", "seed"]
    overrides = json.loads(yaml.safe_load(new)["hf-overrides"])
    assert overrides == {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}


def test_a_value_that_stands_elsewhere_is_left_to_a_person() -> None:
    text = "model: m\nmax-num-seqs: &n 4\nswap-space: *n\nnum-scheduler-steps: 8\n"
    new, made = fixed(text, "0.18.0")
    assert new == text.replace("num-scheduler-steps: 8\n", "")
    (why,) = made.refused
    assert "--swap-space" in why
    assert "by hand" in why


COMMENT = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
KEYS = st.lists(
    st.sampled_from(
        [
            ("model", "m"), ("swap-space", 4), ("max-num-seqs", 8), ("use-v2-block-manager", True),
            ("enable-prefix-caching", False), ("num-scheduler-steps", 8), ("seed", 3), ("max-model-len", 4096),
        ]
    ),
    min_size=1,
    unique_by=lambda item: item[0],
)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(KEYS, st.lists(st.one_of(st.none(), COMMENT), min_size=9, max_size=9), st.booleans())
def test_no_comment_and_no_other_key_is_lost(
    keys: list[tuple[str, object]], comments: list[str | None], underscores: bool
) -> None:
    lines: list[str] = []
    for (key, value), comment in zip(keys, comments, strict=False):
        if comment:
            lines.append(f"# {comment}")
        name = key.replace("-", "_") if underscores else key
        lines.append(f"{name}: {str(value).lower() if isinstance(value, bool) else value}")
    text = "\n".join(lines) + "\n"
    new, _ = fixed(text, "0.18.0")
    for comment in comments[: len(keys)]:
        if comment:
            assert f"# {comment}\n" in new
    before, after = yaml.safe_load(text), yaml.safe_load(new) or {}
    gone = {"swap-space", "use-v2-block-manager", "num-scheduler-steps", "enable-prefix-caching"}
    kept = {key: value for key, value in before.items() if key.replace("_", "-") not in gone}
    assert {key: value for key, value in after.items() if not str(key).startswith("no-")} == kept


@pytest.mark.parametrize(
    "text",
    [
        'CMD="vllm serve m --port 1"\nCMD="$CMD $MORE"\necho "Running: $CMD"\nexec $CMD\n',
        'export VLLM_ATTENTION_BACKEND=FLASHINFER\nC="vllm serve $M"\nC="$C --seed 1"\necho "now: $C"\nexec $C\n',
        'A="vllm serve m"\nB="--swap-space 4"\nbash -c "$A $B"\n',
    ],
)
def test_a_command_put_together_from_variables_keeps_every_word(text: str, tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(text)
    (configuration,) = read_path(path)
    (fixed,) = fix_all([configuration], lambda c: check_all([c], targets=["0.33.0"])[0], unsafe=True)
    after = text if not fixed.plan.texts else fixed.plan.texts[str(path)][1]
    assert after.splitlines()[-1] == text.splitlines()[-1]
    assert len(read_text(after, str(path))) == 1


def test_python_without_a_fix_is_nothing_to_fix() -> None:
    (configuration,) = read_text("from vllm import LLM\nLLM('m', seed=1)\n", "a.py")
    (fixed,) = fix_all([configuration], lambda c: check_all([c], targets=["0.33.0"])[0])
    assert not fixed.refused
    assert not fixed.plan.texts


def test_a_source_is_read_once_for_each_server_that_is_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"vllm serve m{n} --swap-space 4 --port {8000 + n} &\n" for n in range(4))
    servers, read = read_text(text, "a.sh"), []

    def counted(text: str, *more: Any) -> list[Configuration]:
        read.append(text)
        return read_text(text, *more)

    monkeypatch.setattr("camshaft.diagnostics.compat.inputs.read.read_text", counted)
    (done,) = fix_all(servers, lambda c: judged(c, "0.33.0"))
    assert done.plan.fixed == 4
    assert "--swap-space" not in done.plan.texts["a.sh"][1]
    assert len(read) == 4

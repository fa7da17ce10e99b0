"""Forms that people keep servers in besides plain commands and manifests: each becomes the same words at their places."""

from __future__ import annotations

import json

import pytest

from camshaft.diagnostics.compat.inputs.base import Configuration, UnreadableInput
from camshaft.diagnostics.compat.inputs.read import read_text
from camshaft.diagnostics.compat.run import check_all, image_release

RAY = """\
apiVersion: ray.io/v1
kind: RayService
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
        - engine_kwargs:
            swap_space: 4
            max_model_len: 8192
"""
SRT = """\
model: {path: m}
backend:
  vllm_config:
    prefill: {max-model-len: 8192, dyn-tool-call-parser: x}
    decode: {max-num-seqs: 4, data-parallel-hybrid-lb: true}
"""
DYNAMO = "python3 -m dynamo.vllm --model m --is-prefill-worker --connector nixl lmcache --headless --swap-space 4\n"


def one(text: str, name: str) -> Configuration:
    (found,) = read_text(text, name)
    return found


def words(configuration: Configuration) -> list[str]:
    return [word.text for word in configuration.words]


def notebook(*cells: str, indent: int | None = 1) -> str:
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps(
        {"cells": [{"cell_type": "markdown", "source": ["vllm serve x"]}, *made]}, indent=indent
    )


def test_yaml_in_yaml_keeps_its_places() -> None:
    found = one(RAY, "ray.yaml")
    assert [(e.key, e.value, e.place.line) for e in found.entries] == [
        ("swap-space", 4, 9),
        ("max-model-len", 8192, 10),
    ]


def test_settings_kept_by_role() -> None:
    prefill, decode = read_text(SRT, "recipe.yaml")
    assert [e.key for e in prefill.entries] == ["max-model-len"]
    assert prefill.notes == ["not checked, as Dynamo's own: dyn-tool-call-parser"]
    (result,) = check_all([decode], targets=["0.33.0"])
    assert result.starts is None  # the launcher may add --data-parallel-size-local
    assert result.depends_on == ("what the launcher adds",)


def test_a_container_with_a_command_keeps_it_beside_its_settings() -> None:
    found = one(
        "containers:\n- image: vllm/vllm-openai:v0.8.5\n  command: [vllm, serve, m]\n"
        "  vllmConfig: {prefill: {maxModelLn: 8}, maxModelLen: 8}\n",
        "values.yaml",
    )
    assert (found.image, words(found)) == ("vllm/vllm-openai:v0.8.5", ["m"])
    assert [e.key for e in found.entries] == ["prefill", "max-model-len"]


def test_only_roles_divide_settings() -> None:
    (result,) = check_all(read_text("vllmConfig: {vllm: {maxModelLn: 8}}\n", "values.yaml"))
    assert [f.flags for f in result.findings if f.stops] == [("--vllm",)]
    assert result.notes == ()


def test_dynamo_takes_the_engines_options_and_none_of_the_server() -> None:
    found = one(DYNAMO, "run.sh")
    assert words(found) == ["--model", "m", "--swap-space", "4"]
    assert found.notes == ["not checked, as Dynamo's own: --is-prefill-worker, --connector, --headless"]
    (result,) = check_all(read_text(DYNAMO.rstrip() + " --host h\n", "run.sh"), targets=["0.33.0"])
    assert {f.flags for f in result.findings if f.stops} == {("--swap-space",), ("--host",)}


@pytest.mark.parametrize("value", ["-1", "-0.5", "1"])
def test_dynamos_options_take_their_values_along(value: str) -> None:
    text = f"python3 -m dynamo.vllm --model m --migration-limit {value} --max-num-seqs 4\n"
    (result,) = check_all(read_text(text, "run.sh"), targets=["0.33.0"])
    assert result.starts, result.findings


def test_ray_classes_hand_their_arguments_on() -> None:
    found = one(
        "from ray.serve.llm import LLMConfig\n"
        "config = LLMConfig(model_loading_config=dict(model_id='m'), engine_kwargs=dict(swap_space=4, **more))\n",
        "serve.py",
    )
    assert found.entries == []
    assert found.unread == ("**dict(swap_space=4, **more)",)
    found = one(
        "from ray.data.llm import *\nvLLMEngineProcessorConfig(engine_kwargs={'swap_space': 4})\n", "b.py"
    )
    assert [(e.key, e.value) for e in found.entries] == [("swap-space", 4)]


@pytest.mark.parametrize("indent", [1, None])
def test_notebook(indent: int | None) -> None:
    text = notebook(
        "%pip install vllm\nfrom vllm import LLM",
        "this is no Python",
        "llm = LLM(model='m',\n          swap_space=4)",
        "!nohup vllm serve m --port 1 &",
        "%%bash\nexport VLLM_USE_V1=0\nvllm serve m \\\n  --seed 1",
        indent=indent,
    )
    llm, served, scripted = read_text(text, "a.ipynb")
    assert [(e.key, e.value) for e in llm.entries] == [("model", "m"), ("swap-space", 4)]
    assert words(served) == ["m", "--port", "1"]
    assert words(scripted) == ["m", "--seed", "1"]
    assert not llm.editable
    assert not served.editable
    if indent:
        lines = text.splitlines()
        assert "swap_space" in lines[llm.entries[1].place.line - 1]
        assert "--seed" in lines[scripted.words[1].place.line - 1]


@pytest.mark.parametrize(
    ("cell", "command"),
    [
        ("!vllm serve m \\\n  --max-model-len 8192 \\\n  --seed 1", "m --max-model-len 8192 --seed 1"),
        ("if True:\n    !vllm serve m --port 1\nelse:\n    %pip list", "m --port 1"),
        ("for port in (1, 2):\n\t!!vllm serve m --port {port}", "m --port $(port)"),
        (
            "!vllm serve m --port {p['a'] - 1} --hf-overrides {\\\"a\\\":1}",
            "m --port $(p['a'] - 1) --hf-overrides {\"a\":1}",
        ),
        ("log = !vllm serve m --port 1", "m --port 1"),
        ("names, rest = !ls\n%time x = 1 + \\\n  2", None),
        ("%%time\nmodel = ('%s'\n  % 3)\n! ls", None),
    ],
)
def test_lines_of_ipython_hide_neither_a_server_nor_the_python_beside_them(
    cell: str, command: str | None
) -> None:
    found = read_text(notebook(f"{cell}\nfrom vllm import LLM\nLLM('m', seed=4)"), "a.ipynb")
    assert [(e.key, e.value) for e in found[0].entries] == [("model", "m"), ("seed", 4)]
    assert [" ".join(words(served)) for served in found[1:]] == ([command] if command else [])


def test_cells_that_are_no_python_are_named() -> None:
    (found,) = check_all(
        read_text(notebook("what? is", "", "from vllm import LLM\nLLM('m')", "%%html\n<p>"), "a.ipynb")
    )
    assert found.notes[0] == "not read, as no Python: code cells 1, 4"


def test_what_is_no_notebook_is_refused() -> None:
    with pytest.raises(UnreadableInput, match="no notebook"):
        read_text("[]", "a.ipynb")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "vllm.service",
            "[Unit]\nAfter=x\n\n[Service]\n# vllm serve old\nExecStart=/v/vllm serve m \\\n  --seed 1\n",
        ),
        ("vllm.container", "[Container]\n\nImage=vllm/vllm-openai\nExec=vllm serve m \\\n  --seed 1\n"),
    ],
)
def test_units_keep_their_text_for_fixes(name: str, text: str) -> None:
    found = one(text, name)
    assert words(found) == ["m", "--seed", "1"]
    assert found.source.text == text
    assert text[found.words[1].start : found.words[1].end] == "--seed"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_lines_of_a_quadlet_stand_in_any_order(order: tuple[int, ...]) -> None:
    lines = (
        "Image=vllm/vllm-openai:v0.10.0\n",
        "Environment=VLLM_USE_V1=1 HF_HOME=/x\n",
        "Exec=--model m \\\n  --swap-space 4\n",
    )
    text = "[Container]\n" + "".join(lines[at] for at in order) + "[Service]\nEnvironment=VLLM_PORT=1\n"
    found = one(text, "vllm.container")
    assert words(found) == ["--model", "m", "--swap-space", "4"]
    assert {name: setting.value for name, setting in found.env.items()} == {
        "VLLM_USE_V1": "1",
        "HF_HOME": "/x",
    }
    assert (str(image_release(found)), found.doubled) == ("0.10.0", None)
    assert text[found.words[2].start : found.words[2].end] == "--swap-space"


def test_a_quadlets_own_entry_point_starts_what_exec_says() -> None:
    text = "[Container]\nExec=vllm serve m\nImage=vllm/vllm-openai:v0.10.0\n"
    assert one(text, "a.container").doubled is not None
    assert one(text + "Entrypoint=/usr/bin/env\n", "a.container").doubled is None


def test_tags_of_templates_are_unknown_and_their_first_branch_is_read() -> None:
    found = one(
        "vllm serve {{ .model | quote }} {{- if .x }} --enforce-eager{{ else }} --foo {{ if .y }}1{{ end }}{{ end }} "
        "--port={{ .p }} --seed {{ if .s }}{{ .s }}{{ else }}5{{- end }} {% if a %}--dtype {{b}}{% endif %}\n",
        "a.sh",
    )
    assert [(word.text, word.opaque) for word in found.words] == [
        ("{{ .model | quote }}", True),
        ("--enforce-eager", False),
        ("--port={{ .p }}", True),
        ("--seed", False),
        ("{{ .s }}", True),
        ("--dtype", False),
        ("{{b}}", True),
    ]


@pytest.mark.parametrize("length", [10, 999, 1000, 5000])
@pytest.mark.parametrize("closed", ["{{ end }} --port 1", ""])
def test_the_other_branch_of_a_template_is_left_out_however_long(length: int, closed: str) -> None:
    other = "{{ if .y }}1{{ end }}" + " --foo 1" * (length // 8)
    if not closed:
        other += "{{ end }}"
    found = one(f"vllm serve m {{{{ if .x }}}}--seed 1{{{{ else }}}}{other}{closed}\n", "a.sh")
    assert words(found) == ["m", "--seed", "1", *closed.split()[-2:]]


@pytest.mark.parametrize(
    "text",
    [
        "name: x\nmodel: {path: m}\nbackend: {type: vllm}\nresources: {gpus: 8}\n",
        "replicaCount: 1\nimage: {repository: a, tag: b}\nservice: {port: 80}\n",
        "title: Panel\nid: 3\nuid: abc\n",
        "kind: CustomResourceDefinition\nspec:\n  vllmConfig:\n    type: object\n    properties: {}\n",
        "notes:\n- Update vllm serve flags, --foo among them\n- Use `vllm serve m --port 1` for it\nfrom: a\nto: b\n",
        "a: |\n  Run it with vllm serve and its options --port\nb: {c: 1}\n",
    ],
)
def test_other_programs_files_are_refused(text: str) -> None:
    with pytest.raises(UnreadableInput):
        read_text(text, "values.yaml")


def test_a_template_that_is_no_yaml_says_what_to_check() -> None:
    with pytest.raises(UnreadableInput, match=r"helm template .* check-flags -"):
        read_text("a:\n  {{- range .x }}\n  - {{ . }}\n  {{- end }}\n", "deployment.yaml")


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.8.5", "0.8.5"),
        ("registry/aibrix/vllm-openai:v0.10.0-cu128-nixl", "0.10.0"),
        ("registry/vllm-cpu:0.9.2", "0.9.2"),
        ("registry/llm-d/llm-d-cuda:v0.8.0", None),
        ("kserve/huggingfaceserver:v0.15.0-gpu", None),
        ("registry/ai-dynamo/vllm-runtime:0.7.0", None),
        ("lmcache/vllm-openai:v0.7.0", None),
        ("registry:5000/lmcache/vllm-openai-nightly:v0.7.0", None),
        ("registry/notlmcache/vllm-openai:v0.7.0", "0.7.0"),
    ],
)
def test_only_images_of_vllm_tell_its_release(image: str, release: str | None) -> None:
    text = f"services:\n  v:\n    image: ${{IMAGE:-{image}}}\n    command: vllm serve m --port 1\n"
    found = one(text, "compose.yaml")
    assert found.image == image
    told = image_release(found)
    assert (str(told) if told else None) == release


def test_compose_hands_a_shell_its_text_unescaped() -> None:
    found = one(
        "services:\n  v:\n    image: x\n    environment:\n      TP: ${TP:-2}\n      MODEL: ${MODEL}\n    entrypoint:\n"
        '      bash -c "vllm serve $${MODEL} \\\n      --tensor-parallel-size $${TP} \\\n      --seed ${SEED:-}"\n',
        "compose.yaml",
    )
    assert [(word.text, word.opaque) for word in found.words] == [
        ("${MODEL}", True),
        ("--tensor-parallel-size", False),
        ("2", False),
        ("--seed", False),
        ("${SEED:-}", True),
    ]


def test_a_command_executed_in_an_image_is_no_list_of_arguments() -> None:
    found = one(
        'RUN="apptainer exec /images/vllm.sif"\n$RUN vllm serve m --port 1 &\n$RUN python3 client.py\n',
        "job.sbatch",
    )
    assert words(found) == ["m", "--port", "1"]


@pytest.mark.parametrize("name", ["serve.py", "serve"])
def test_a_script_that_names_its_interpreter_is_python(name: str) -> None:
    text = (
        "#!/usr/bin/env python3\nimport subprocess\nsubprocess.Popen(['vllm', 'serve', 'm', '--port', '1'])\n"
    )
    assert words(one(text, name)) == ["m", "--port", "1"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.yaml",
            "llm_configs:\n- engine_kwargs: {seed: 1}\n  runtime_env: {env_vars: {VLLM_USE_V1: '0'}}\n",
        ),
        (
            "a.py",
            "c = LLMConfig(engine_kwargs=dict(seed=1), runtime_env=dict(env_vars={'VLLM_USE_V1': '0'}))\n",
        ),
        (
            "a.py",
            "c = LLMConfig(engine_kwargs=dict(seed=1), runtime_env={'env_vars': {'VLLM_USE_V1': '0'}})\n",
        ),
    ],
)
def test_the_variables_of_rays_runtime_are_the_servers(name: str, text: str) -> None:
    (found,) = read_text(text, name)
    assert found.env["VLLM_USE_V1"].value == "0"
